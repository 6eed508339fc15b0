package penstock

// HashVersion is the version of [HashKey], recorded with every topic whose
// partitions were chosen by it. It changes only with the function's results.
const HashVersion = 1

const (
	fnvOffset = 14695981039346656037
	fnvPrime  = 1099511628211
)

// HashKey returns the hash by which equal keys share a partition: FNV-1a over
// the key's bytes, then a 64-bit finaliser, because FNV-1a alone leaves the
// low bits of similar keys alike. The result is the same on every platform,
// in every process and in every version of this module with the same
// [HashVersion] (ADR 0014); golden vectors are in testdata/hash.txt.
func HashKey(key string) uint64 { return finalise(fnv1a(fnvOffset, key)) }

func fnv1a(h uint64, s string) uint64 {
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * fnvPrime
	}
	return h
}

// finalise spreads every input bit over all output bits (the fmix64 step that
// Austin Appleby published with MurmurHash3).
func finalise(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	h ^= h >> 33
	return h
}
