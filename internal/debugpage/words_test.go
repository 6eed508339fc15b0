package debugpage

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
)

func TestTextsForPeople(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "-1s", 0: "0s", 300: "300ns", 1500: "1.5µs", 2*time.Millisecond + 345678: "2.3ms", 1230 * time.Millisecond: "1.2s",
		90 * time.Second: "1m30s", 3*time.Hour + 5*time.Minute + time.Second: "3h5m", 50 * time.Hour: "2d2h",
	} {
		if got := Span(d); got != want {
			t.Errorf("span(%d) = %q, want %q", d, got, want)
		}
	}
	for n, want := range map[uint64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		if got := Grouped(n); got != want {
			t.Errorf("grouped(%d) = %q, want %q", n, got, want)
		}
	}
	long := ErrorText(errors.New(strings.Repeat("é", 1000) + "\xff"))
	if len(long) > MaxErrorText || !strings.HasSuffix(long, "é…") {
		t.Errorf("%d bytes, end %q", len(long), long[len(long)-6:])
	}
	if got := ErrorText(errors.New("a\xffb")); got != "a\uFFFDb" {
		t.Errorf("%q", got)
	}
	for n, want := range map[float64]string{0: "0/s", 0.12345: "0.123/s", 999: "999/s", 1234.6: "1,235/s"} {
		if got := Rate(n); got != want {
			t.Errorf("Rate(%v) = %q, want %q", n, got, want)
		}
	}
	for n, want := range map[penstock.Bytes]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 3 << 29: "1.5 GiB"} {
		if got := Size(n); got != want {
			t.Errorf("Size(%d) = %q, want %q", n, got, want)
		}
	}
	if got := Count(1, "event", "events") + Count(2000, "event", "events") + Upper("a") + Upper(""); got != "1 event2,000 eventsA" {
		t.Error(got)
	}
}
