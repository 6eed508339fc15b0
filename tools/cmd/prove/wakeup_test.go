package main

import (
	"strings"
	"testing"
)

// Each half of the proof above seglog.Waker, taken away, is found.
func TestOrdersFindALostWakeUp(t *testing.T) {
	l, err := newLab()
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	for name, change := range map[string][2]string{
		"the consumer does not look again": {"if w.anyDirty() || w.rung.Load() {\n\t\tw.parked", "if w.rung.Load() {\n\t\tw.parked"},
		"a ring is not looked at again":    {"if w.anyDirty() || w.rung.Load() {\n\t\tw.parked", "if w.anyDirty() {\n\t\tw.parked"},
		"the consumer looks before it says so": {
			"	w.parked.Store(1)\n	if w.closed.Load() {\n		w.parked.Store(0)\n		return penstock.ErrClosed\n	}\n	if w.anyDirty() || w.rung.Load() {\n		w.parked.Store(0)\n		w.answer()\n		return nil\n	}\n",
			"	if w.anyDirty() || w.rung.Load() {\n		w.answer()\n		return nil\n	}\n	w.parked.Store(1)\n",
		},
		"the appender looks before it marks": {
			"	if p.dirty.Or(p.bit)&p.bit == 0 {\n		p.waker.wake()\n	}",
			"	asleep := p.waker.parked.Load() == 1\n	if p.dirty.Or(p.bit)&p.bit == 0 && asleep {\n		p.waker.wake()\n	}",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tryOrders(t.Context(), l, func(source string) string {
				changed := strings.Replace(source, change[0], change[1], 1)
				if changed == source {
					t.Fatal("the change does not apply to seglog/waker.go")
				}
				return changed
			})
			if err == nil || !strings.Contains(err.Error(), "consumer waits for ever in this order of steps") {
				t.Errorf("%v", err)
			}
		})
	}
}
