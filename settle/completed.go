package settle

import (
	"fmt"

	"github.com/penstock/penstock"
)

// The stored form of settled offsets above a commit: bit i, counted from the
// least significant bit of the first byte, stands for offset committed + i.
// There are at most WindowMax bits, and the last byte is not 0; nothing at all
// is the form of "none".

// CompletedMax is the largest size of the stored form, in bytes.
const CompletedMax = WindowMax / 8

// AppendCompleted appends the offsets above [Machine.Committed] that are
// settled, or parked and in the retry log, to dst in their stored form and
// returns the result; it appends nothing when there are none, which is the
// usual case and costs nothing. The form belongs to the commit of the same
// moment.
func (m *Machine) AppendCompleted(dst []byte) []byte {
	if len(m.runs) == 0 && len(m.completed) == 0 {
		return dst
	}
	w := completedWriter{b: dst, start: len(dst), base: m.Committed()}
	for i, r := range m.runs {
		to := m.next
		if i+1 < len(m.runs) {
			to = m.runs[i+1].from
		}
		w.add(extent{r.to, to})
	}
	for _, c := range m.completed {
		w.add(c)
	}
	return w.b
}

type completedWriter struct {
	b     []byte
	start int
	base  penstock.Offset
}

// add sets the bits of e. What was restored may lie beyond the window: it is
// parked, and the retry log tells it.
func (w *completedWriter) add(e extent) {
	if e.from-w.base >= WindowMax {
		return
	}
	e.to = cut(w.base, e.to, WindowMax)
	for o := e.from; o < e.to; o++ {
		i := int(o - w.base)
		for len(w.b)-w.start <= i/8 {
			w.b = append(w.b, 0)
		}
		w.b[w.start+i/8] |= 1 << (i % 8)
	}
}

// parseCompleted returns the runs of settled offsets that the stored form b
// tells.
func parseCompleted(committed penstock.Offset, b []byte) ([]extent, error) {
	bad := func(format string, args ...any) error {
		return &penstock.FieldError{Field: "Completed", Reason: fmt.Sprintf(format, args...)}
	}
	switch {
	case len(b) == 0:
		return nil, nil
	case len(b) > CompletedMax:
		return nil, bad("%d bytes, at most %d", len(b), CompletedMax)
	case b[len(b)-1] == 0:
		return nil, bad("ends with a byte of 0")
	case committed+penstock.Offset(len(b)*8) < committed:
		return nil, bad("reaches beyond the last offset")
	}
	var runs []extent
	for i := range len(b) * 8 {
		if b[i/8]&(1<<(i%8)) == 0 {
			continue
		}
		o := committed + penstock.Offset(i)
		if n := len(runs); n > 0 && runs[n-1].to == o {
			runs[n-1].to++
		} else {
			runs = append(runs, extent{o, o + 1})
		}
	}
	return runs, nil
}
