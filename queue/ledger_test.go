package queue

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock/penstock"
)

// TestLedgerFollowsTheModel: sums over any range, and what a release returns,
// are those of a plain list.
func TestLedgerFollowsTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		begin := rapid.Uint64Range(0, 1<<40).Draw(t, "begin")
		l := &ledger{}
		l.begin(penstock.Offset(begin))
		var sizes []penstock.Bytes
		released := 0
		sum := func(from, to int) (total penstock.Bytes) {
			for _, s := range sizes[max(from, released):max(to, released)] {
				total += s
			}
			return total
		}
		at := func(i int) penstock.Offset { return penstock.Offset(begin) + penstock.Offset(i) }
		size := rapid.Int64Range(0, 1000)
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				n := rapid.IntRange(1, 3*ledgerPiece).Draw(t, "n")
				for range n {
					s := penstock.Bytes(size.Draw(t, "size"))
					sizes = append(sizes, s)
					l.add(s)
				}
			},
			"strided": func(t *rapid.T) {
				some := []penstock.Bytes{1, 10, 100, 1000, 10_000}
				l.addStrided(some, 1, 3)
				l.addPicked(some, []int32{0, 2})
				sizes = append(sizes, 10, 10_000, 1, 100)
			},
			"release": func(t *rapid.T) {
				to := rapid.IntRange(0, len(sizes)).Draw(t, "to")
				want := penstock.Bytes(0)
				if to > released {
					want, released = sum(released, to), to
				}
				if got := l.release(at(to)); got != want {
					t.Fatalf("release(%d) = %d, want %d", to, got, want)
				}
			},
			"": func(t *rapid.T) {
				from := rapid.IntRange(0, len(sizes)).Draw(t, "from")
				to := rapid.IntRange(from, len(sizes)).Draw(t, "to")
				if got, want := l.bytes(at(from), at(to)), sum(from, to); got != want {
					t.Fatalf("bytes(%d, %d) = %d, want %d", from, to, got, want)
				}
				if pieces, most := len(l.pieces)-l.first, (len(sizes)-released)/ledgerPiece+2; pieces > most {
					t.Fatalf("%d pieces for %d events", pieces, len(sizes)-released)
				}
			},
		})
	})
}

func TestLedgerAllocatesNothingOnceItHasGrown(t *testing.T) {
	l := &ledger{}
	end := penstock.Offset(0)
	cycle := func() {
		for range 100 {
			l.add(1, 2, 3, 4, 5)
			end += 5
			if got := l.release(end - 5); got > 15 {
				t.Fatalf("released %d", got)
			}
		}
	}
	for range 10 {
		cycle()
	}
	if n := testing.AllocsPerRun(100, cycle); n != 0 {
		t.Errorf("%v allocations per cycle, want 0", n)
	}
}
