package segfile

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

// TestSearchLooksAtEveryByte compares the ways that skip zeros and other bytes
// with a look at each.
func TestSearchLooksAtEveryByte(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		b := make([]byte, rng.IntN(4*len(zeros)))
		for range rng.IntN(4) {
			if len(b) > 0 {
				copy(b[rng.IntN(len(b)):], [][]byte{{1}, magicBytes, magicBytes[:3], {'P', 'P', 'F', 'R', 'M'}}[rng.IntN(4)])
			}
		}
		last := -1
		for i, c := range b {
			if c != 0 {
				last = i
			}
		}
		if got := lastNonZero(b); got != last {
			t.Fatalf("the last byte that is not zero is %d of %d, want %d", got, len(b), last)
		}
		v := &fileView{file: bytes.NewReader(b), size: int64(len(b))}
		from, to := 0, len(b)
		if to > 8 {
			from = rng.IntN(to/8) * 8
		}
		want := int64(to)
		for i := from; i+4 <= to; i += frameAlign {
			if binary.LittleEndian.Uint32(b[i:]) == frameMagic {
				want = int64(i)
				break
			}
		}
		if got, err := candidate(v, int64(from), int64(to)); err != nil || got != want {
			t.Fatalf("the first candidate in [%d, %d) is at %d, %v; want %d", from, to, got, err, want)
		}
	}
}
