package stream

import "github.com/penstock/penstock"

// withoutEmpty drops containers that hold no event (OR-52).
func withoutEmpty(batch []Container) []Container {
	for i := range batch {
		if batch[i].Events.Len() == 0 {
			kept := append([]Container(nil), batch[:i]...)
			for _, c := range batch[i:] {
				if c.Events.Len() > 0 {
					kept = append(kept, c)
				}
			}
			return kept
		}
	}
	return batch
}

// nameless counts containers without a stream: nobody can subscribe to them.
func nameless(batch []Container) (n uint64) {
	for i := range batch {
		if batch[i].Stream == (penstock.StreamID{}) {
			n++
		}
	}
	return n
}
