package main

import (
	"strings"
	"testing"
)

// Each half of the proofs above seglog.Waker and seglog.Turn, taken away, is
// found.
func TestOrdersFindALostWakeUp(t *testing.T) {
	l, err := newLab()
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	for name, change := range map[string][3]string{
		"the consumer does not look again": {"AWakeUp", "if w.anyDirty() || w.rung.Load() {\n\t\tw.parked", "if w.rung.Load() {\n\t\tw.parked"},
		"a ring is not looked at again":    {"AWakeUp", "if w.anyDirty() || w.rung.Load() {\n\t\tw.parked", "if w.anyDirty() {\n\t\tw.parked"},
		"the consumer looks before it says so": {
			"AWakeUp",
			"	w.parked.Store(1)\n	if w.closed.Load() {\n		w.parked.Store(0)\n		return penstock.ErrClosed\n	}\n	if w.anyDirty() || w.rung.Load() {\n		w.parked.Store(0)\n		w.answer()\n		return nil\n	}\n",
			"	if w.anyDirty() || w.rung.Load() {\n		w.answer()\n		return nil\n	}\n	w.parked.Store(1)\n",
		},
		"the appender looks before it marks": {
			"AWakeUp",
			"	if p.dirty.Or(p.bit)&p.bit == 0 {\n		p.waker.wake()\n	}",
			"	asleep := p.waker.parked.Load() == 1\n	if p.dirty.Or(p.bit)&p.bit == 0 && asleep {\n		p.waker.wake()\n	}",
		},
		"a waiter parks without a mark": {"TheTurn", "if w&set == set || t.word.CompareAndSwap(w, w|set) {", "if t.word.Load(); set != 0 {"},
		"a turn is taken in two steps": {
			"TheTurn",
			"return w&(locked|starving) == 0 && t.word.CompareAndSwap(w, w|locked)",
			"if w&(locked|starving) == 0 {\n\t\tt.word.Store(w | locked)\n\t\treturn true\n\t}\n\treturn false",
		},
	} {
		t.Run(name, func(t *testing.T) {
			applied := false
			_, err := tryOrders(t.Context(), l, change[:1], func(source string) string {
				applied = applied || strings.Contains(source, change[1])
				return strings.Replace(source, change[1], change[2], 1)
			})
			if !applied {
				t.Fatal("the change does not apply")
			}
			if err == nil || !strings.Contains(err.Error(), " in this order of steps: ") {
				t.Errorf("%v", err)
			}
		})
	}
}
