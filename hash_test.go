package penstock_test

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock/penstock"
)

// referenceHash is the documented function built from other parts than the
// product: the standard library's FNV-1a, and the finaliser written out.
func referenceHash(key string) uint64 {
	f := fnv.New64a()
	f.Write([]byte(key))
	h := f.Sum64()
	for _, m := range []uint64{0xff51afd7ed558ccd, 0xc4ceb9fe1a85ec53} {
		h = (h ^ h/(1<<33)) * m
	}
	return h ^ h/(1<<33)
}

// hashKeys are the keys of the golden vectors.
func hashKeys() []string {
	keys := []string{"", "a", "b", "ab", "\x00", "a\x00b", "key", "user-1", "user-2", "user-9999", "ABCD", "ABCE",
		"customer/42", "grün", "日本", "\xff\xfe", strings.Repeat("x", 64), strings.Repeat("x", 1000)}
	for i := range 16 {
		keys = append(keys, fmt.Sprintf("order-%06d", i*7919))
	}
	return keys
}

const hashFile = "testdata/hash.txt"

func hashVectors() []byte {
	var out bytes.Buffer
	for _, k := range hashKeys() {
		fmt.Fprintf(&out, "%s\t%016x\n", strconv.QuoteToASCII(k), penstock.HashKey(k))
	}
	return out.Bytes()
}

func TestHashKeyMatchesGoldenVectors(t *testing.T) {
	if *update {
		if err := os.WriteFile(hashFile, hashVectors(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(hashFile)
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.ReplaceAll(text, []byte("\r"), nil)
	if !bytes.Equal(text, hashVectors()) {
		t.Errorf("%s is not what -update writes: the hash changed", hashFile)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	for _, line := range lines {
		quoted, sum, _ := strings.Cut(line, "\t")
		key, err := strconv.Unquote(quoted)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		want, err := strconv.ParseUint(sum, 16, 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if got := penstock.HashKey(key); got != want {
			t.Errorf("HashKey(%s) = %016x, want %016x", quoted, got, want)
		}
		if got := referenceHash(key); got != want {
			t.Errorf("reference of %s is %016x, the file says %016x", quoted, got, want)
		}
	}
	if len(lines) != len(hashKeys()) {
		t.Errorf("%d vectors, want %d", len(lines), len(hashKeys()))
	}
}

// Known values of the parts, from their own publications: FNV-1a of "a" and
// "foobar", and that the finaliser maps 0 to 0.
func TestHashReferenceIsRight(t *testing.T) {
	for s, want := range map[string]uint64{"": 0xcbf29ce484222325, "a": 0xaf63dc4c8601ec8c, "foobar": 0x85944171f73967e8} {
		f := fnv.New64a()
		f.Write([]byte(s))
		if f.Sum64() != want {
			t.Errorf("FNV-1a of %q is %x, published is %x", s, f.Sum64(), want)
		}
	}
}

func TestHashKeySpreadsSimilarKeys_QC9(t *testing.T) {
	const partitions, keys = 16, 10_000
	var load [partitions]int
	for i := range keys {
		load[penstock.HashKey(fmt.Sprintf("user-%d", i))%partitions]++
	}
	low, high := load[0], load[0]
	for _, n := range load {
		low, high = min(low, n), max(high, n)
	}
	if low == 0 || float64(high)/float64(low) >= 1.5 {
		t.Fatalf("loads %v: max %d over min %d is not below 1.5", load, high, low)
	}
}

func TestStreamHashIsThatOfItsParts(t *testing.T) {
	for _, s := range []penstock.StreamID{{"orders", "42"}, {"orders", ""}, {"", "x"}, {"a", "b/c"}, {"a/b", "c"}} {
		if got, want := s.Hash(), penstock.HashKey(s.Namespace+"\x00"+s.Key); got != want {
			t.Errorf("%v: %x, want %x", s, got, want)
		}
	}
	if (penstock.StreamID{Namespace: "a", Key: "b/c"}).Hash() == (penstock.StreamID{Namespace: "a/b", Key: "c"}).Hash() {
		t.Error("the border between the parts is not hashed")
	}
}

func BenchmarkHashKey(b *testing.B) {
	for _, key := range []string{"user-42", strings.Repeat("k", 36)} {
		b.Run(strconv.Itoa(len(key)), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				penstock.HashKey(key)
			}
		})
	}
}
