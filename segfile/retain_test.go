package segfile

import (
	"fmt"
	"math"
	"testing"

	"github.com/penstock/penstock"
)

func TestNewestSegmentsBeginAtTheirFirstEvent(t *testing.T) {
	each(t, func(t *testing.T, c Config) {
		c.SegmentEvents = 2
		l := openLog(t, c)
		p := l.Partition(0)
		newest := func(n int, below, want penstock.Offset) {
			t.Helper()
			if got := p.Newest(n, below); got != want {
				t.Errorf("the newest %d below %d begin at %d, want %d", n, below, got, want)
			}
		}
		newest(0, 0, 0)
		newest(3, 0, 0)
		for i := range 7 { // [0, 2), [2, 4), [4, 6), and 6 is in the active one
			mustAppend(t, p, fmt.Sprint(i))
		}
		for below, sealed := range map[penstock.Offset]int{0: 0, 1: 0, 2: 1, 3: 1, 4: 2, 5: 2, 6: 3, 7: 3} {
			for n := 1; n <= 4; n++ {
				newest(n, below, penstock.Offset(2*max(0, sealed-n)))
			}
			newest(math.MaxInt, below, 0)
		}
		must(t, p.Trim(p.Newest(2, 7)))
		if p.Earliest() != 2 || p.Stats().Segments != 3 {
			t.Errorf("earliest %d, %d segments, want 2 and 3", p.Earliest(), p.Stats().Segments)
		}
		newest(2, 7, 2)
		newest(9, 7, 2)
		newest(1, 7, 4)
		mustAppend(t, p, "7") // fills the last one
		newest(1, 8, 6)
		newest(0, 8, 8)
	})
}
