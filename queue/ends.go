package queue

import "github.com/penstock/penstock"

// What a consumer knows of how far its partitions reach. In memory the ends of
// all of them follow from one word, which whoever appends writes for every event.
// A look at it costs both sides a line that goes from one processor to the other,
// so a pull uses the look of the one before, of another partition, as long as it
// shows a full batch.
//
// Invariant: what was published in a partition, and is not below its end by the
// look, has left a dirty bit in the waker that was not taken: every Take is
// followed by another look.

// fresh reports whether partition i may have events beyond its window.
func (c *Consumer[T]) fresh(i int, cur *cursor[T], max int) bool {
	if c.isPending(i) && c.look.Taken() {
		if end := cur.source.endBy(&c.look); end >= cur.read+penstock.Offset(max) {
			return true
		}
	}
	word := i / 64
	c.pending[word] |= c.waker.Take(word)
	c.look.Again()
	return c.isPending(i)
}

// collect takes the bits of all partitions at the beginning of a round in which
// each is looked at once: what arrives meanwhile stays in the waker, and keeps
// it from sleeping.
func (c *Consumer[T]) collect() {
	for word := range c.pending {
		c.pending[word] |= c.waker.Take(word)
	}
	c.look.Again()
}

// end returns how far the partition of a cursor reaches, from the cursor's place
// on.
func (c *Consumer[T]) end(cur *cursor[T]) penstock.Offset {
	end := cur.source.endBy(&c.look)
	if end < cur.read { // it was sought since
		c.look.Again()
		end = cur.source.endBy(&c.look)
	}
	return end
}
