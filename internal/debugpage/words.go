package debugpage

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/penstock/penstock"
)

// MaxErrorText bounds the text of an error in a picture, in bytes.
const MaxErrorText = 512

// Count writes a number with its noun: 1,204 events.
func Count(n uint64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return Grouped(n) + " " + many
}

// Grouped writes a number with commas between thousands.
func Grouped(n uint64) string {
	s := strconv.FormatUint(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Rate writes a rate in three digits.
func Rate(r float64) string {
	if r >= 1000 {
		return Grouped(uint64(r+0.5)) + "/s"
	}
	return strconv.FormatFloat(r, 'g', 3, 64) + "/s"
}

// Span writes a duration for people: two units at most, three digits below a
// second.
func Span(d time.Duration) string {
	day := 24 * time.Hour
	switch {
	case d < 0:
		return "-" + Span(-d)
	case d < time.Microsecond:
		return d.String()
	case d < time.Millisecond:
		return d.Round(10 * time.Nanosecond).String()
	case d < time.Second:
		return d.Round(100 * time.Microsecond).String()
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		return d.Round(time.Second).String()
	case d < day:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	}
	return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
}

// Size writes bytes for people.
func Size(b penstock.Bytes) string {
	unit, name := penstock.Bytes(1), "B"
	for _, next := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if b < unit*1024 {
			break
		}
		unit, name = unit*1024, next
	}
	if unit == 1 {
		return strconv.FormatInt(int64(b), 10) + " B"
	}
	return strconv.FormatFloat(float64(b)/float64(unit), 'f', 1, 64) + " " + name
}

// Upper makes a sentence of what begins with a small letter.
func Upper(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// ErrorText returns what an error says, in valid UTF-8 and in at most
// MaxErrorText bytes. An Error method that panics says so.
func ErrorText(err error) string {
	return Bounded(fmt.Sprintf("%v", err))
}

// Bounded cuts a text to [MaxErrorText] bytes of valid UTF-8.
func Bounded(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= MaxErrorText {
		return s
	}
	const more = "…"
	cut := MaxErrorText - len(more)
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + more
}
