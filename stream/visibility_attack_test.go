package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"pgregory.net/rapid"
)

// A dead-letter handler that takes longer than Visibility gets a container once,
// whoever looks at the queue meanwhile.
func TestSlowDeadLetterHandlerTakesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		v := newVisible(t, VisibilityConfig{Visibility: time.Second, MaxReceives: 1, DeadLetter: func(context.Context, Container) error {
			calls++
			time.Sleep(5 * time.Second)
			return nil
		}})
		v.put("bad")
		first := v.receiver()
		v.read(first, 1)
		v.shutdown(first)
		r := v.receiver()
		done := make(chan struct{})
		go func() { defer close(done); v.read(r, 10) }()
		for range 4 {
			time.Sleep(1100 * time.Millisecond)
			want(t, "while the handler is at work", v.queue.Stats()[0], VisibilityStats{Hidden: 1, Events: 1})
		}
		<-done
		want(t, "afterwards", v.queue.Stats()[0], VisibilityStats{DeadLettered: 1})
		want(t, "read again", inWords(v.read(r, 10)), "")
		want(t, "calls", calls, 1)
		v.shutdown(r)
	})
}

// What was read beside a dead letter is renewed while its handler is at work.
func TestSlowDeadLetterHandlerDoesNotExpireOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVisible(t, VisibilityConfig{Visibility: time.Second, MaxReceives: 1, DeadLetter: func(context.Context, Container) error {
			time.Sleep(5 * time.Second)
			return nil
		}})
		v.put("bad")
		first := v.receiver()
		v.read(first, 1)
		v.shutdown(first)
		v.put("good")
		r := v.receiver()
		got := v.read(r, 10)
		want(t, "read", inWords(got), "good@2")
		if err := r.Delivered(t.Context(), got); err != nil {
			t.Error(err)
		}
		want(t, "afterwards", v.queue.Stats()[0], VisibilityStats{Acknowledged: 1, DeadLettered: 1})
		v.shutdown(r)
	})
}

// A container that the dead-letter handler never takes does not keep those
// behind it from being dead letters, and one read fails once.
func TestDeadLetterThatFailsHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dead []Container
		calls := 0
		v := newVisible(t, VisibilityConfig{Visibility: time.Second, MaxReceives: 1, DeadLetter: func(_ context.Context, c Container) error {
			calls++
			if string(c.Events.Value(0)) == "1" || string(c.Events.Value(0)) == "3" {
				return errBoom
			}
			dead = append(dead, c)
			return nil
		}})
		v.put("1", "2", "3", "4")
		first := v.receiver()
		v.read(first, 4)
		v.shutdown(first)
		r := v.receiver()
		for _, failing := range []bool{true, true, false} { // 1; 2 and 3; 4
			before := calls
			got, err := r.Read(t.Context(), 10)
			want(t, "read", inWords(got), "")
			if (err != nil) != failing || failing && !errors.Is(err, errBoom) {
				t.Errorf("error %v, want one: %t", err, failing)
			}
			want(t, "calls of one read, at most two", calls-before <= 2, true)
		}
		want(t, "dead letters", inWords(dead), "2@0+1 4@0+1")
		want(t, "hidden until they are tried again", v.queue.Stats()[0].Hidden, 2)
		time.Sleep(time.Second)
		want(t, "ready again", v.queue.Stats()[0].Ready, 2)
		v.shutdown(r)
	})
}

// Receivers that wait while a dead-letter handler is at work are told of what it
// has not taken when that is due again, also when the one that counted on it is
// gone.
func TestWaitersHearOfADeadLetterThatWasNotTaken(t *testing.T) {
	for _, leaves := range []bool{false, true} {
		t.Run(fmt.Sprint("leaves=", leaves), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fail := make(chan struct{})
				v := newVisible(t, VisibilityConfig{Visibility: time.Second, MaxReceives: 1, DeadLetter: func(context.Context, Container) error {
					<-fail
					return errBoom
				}})
				v.put("bad")
				first := v.receiver()
				v.read(first, 1)
				v.shutdown(first)
				r := v.receiver()
				read := make(chan error, 1)
				go func() { // ends when fail is closed
					_, err := r.Read(t.Context(), 1)
					read <- err
				}()
				synctest.Wait()
				q := v.queue.queues[0]
				one, leave := context.WithCancel(t.Context())
				other, end := context.WithTimeout(t.Context(), time.Minute)
				defer end()
				heard := [2]chan error{make(chan error, 1), make(chan error, 1)}
				for i, ctx := range []context.Context{one, other} {
					go func() { heard[i] <- q.wait(ctx) }() // ends with its context, or when the message is ready
					synctest.Wait()
				}
				close(fail)
				if err := <-read; !errors.Is(err, errBoom) {
					t.Errorf("read: %v", err)
				}
				synctest.Wait()
				if leaves {
					leave()
				}
				if err := <-heard[1]; err != nil {
					t.Errorf("the one that stays: %v", err)
				}
				synctest.Wait()
				leave()
				if err := <-heard[0]; (err != nil) != leaves {
					t.Errorf("the one that leaves, %t: %v", leaves, err)
				}
				v.shutdown(r)
			})
		})
	}
}

func TestContainerThatNeverFitsIsTooLarge(t *testing.T) {
	v := newVisible(t, VisibilityConfig{Capacity: 2})
	if err := v.adapter.Enqueue(t.Context(), boxOf("s", 0, "1", "2", "3")); !errors.Is(err, penstock.ErrTooLarge) || errors.Is(err, penstock.ErrFull) {
		t.Errorf("three events into two: %v, want ErrTooLarge", err)
	}
	v.put("1", "2")
}

// A receiver that did nothing for long: what it held has expired, and neither
// acknowledging nor asking for more time brings it back.
func TestReceiverThatSleptIsTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVisible(t, VisibilityConfig{Visibility: time.Second})
		v.put("1")
		r := v.receiver().(*visibilityReceiver)
		r.shut = true
		close(r.stop) // its renewer ends
		<-r.done
		got := v.read(r, 1)
		time.Sleep(5 * time.Second)
		r.renewHeld(time.Now())
		want(t, "held", len(r.held), 0)
		again := v.read(r, 1)
		want(t, "shown again", inWords(again), "1@2+1")
		for range 2 {
			if err := r.Delivered(t.Context(), got); !errors.Is(err, ErrReceiptExpired) {
				t.Errorf("late acknowledgement: %v, want ErrReceiptExpired", err)
			}
		}
		want(t, "stays", v.queue.Stats()[0], VisibilityStats{Hidden: 1, Events: 1, Repeated: 1, LateReceipts: 3})
		v.shutdown(r)
		want(t, "given back", v.queue.Stats()[0].Ready, 1)
	})
}

// An acknowledgement, and a shutdown, that come twice are one.
func TestTwiceIsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVisible(t, VisibilityConfig{Visibility: time.Second})
		v.put("1", "2")
		r := v.receiver()
		got := v.read(r, 2)
		if err := r.Delivered(t.Context(), got[:1]); err != nil {
			t.Error(err)
		}
		if err := r.Delivered(t.Context(), got[:1]); !errors.Is(err, ErrReceiptExpired) {
			t.Errorf("acknowledged twice: %v, want ErrReceiptExpired", err)
		}
		v.shutdown(r)
		v.shutdown(r)
		want(t, "afterwards", v.queue.Stats()[0], VisibilityStats{Ready: 1, Events: 1, Acknowledged: 1, LateReceipts: 1})
	})
}

// Thousands of hidden messages that are due one by one: the work for each does
// not grow with their number. (A million would take hours if it did.)
func TestManyAreDueOneByOne(t *testing.T) {
	const messages = 200_000
	c := VisibilityConfig{Visibility: time.Hour, Capacity: messages}
	q := newVisibleQueue(&c)
	start := time.Now()
	for i := range messages {
		if err := q.enqueue(boxOf("s", 0, "x"), start); err != nil {
			t.Fatal(err)
		}
		if got, _ := q.receive(1, start.Add(time.Duration(i))); len(got) != 1 {
			t.Fatal("nothing to receive")
		}
	}
	for i := range messages {
		now := start.Add(time.Hour + time.Duration(i))
		q.mu.Lock()
		q.expire(now)
		ready := q.ready()
		q.mu.Unlock()
		if ready != i+1 {
			t.Fatalf("%d are ready after %d", ready, i+1)
		}
	}
}

// plainMessage is a message of the model: a slice, searched.
type plainMessage struct {
	number, received int
	receipt          uint64 // 0: ready
	until            time.Time
}

type plainQueue struct {
	config   *VisibilityConfig
	messages []*plainMessage // by number
	receipts uint64
	last     int
}

func (q *plainQueue) expire(now time.Time) {
	for _, m := range q.messages {
		if m.receipt != 0 && !now.Before(m.until) {
			m.receipt = 0
		}
	}
}

func (q *plainQueue) receive(limit int, now time.Time) (got []string) {
	q.expire(now)
	for _, m := range q.messages {
		if m.receipt != 0 || limit == 0 {
			continue
		}
		limit--
		q.receipts++
		m.receipt, m.until = q.receipts, now.Add(q.config.Visibility)
		got = append(got, fmt.Sprintf("%d+%d", m.number, m.received))
		m.received++
	}
	return got
}

func (q *plainQueue) find(receipt uint64, now time.Time) *plainMessage {
	q.expire(now)
	for _, m := range q.messages {
		if m.receipt == receipt {
			return m
		}
	}
	return nil
}

// Receipts expire, are used twice, too late, in any order, renewed and given
// back; the clock of a caller may be behind that of another.
func TestVisibleQueueIsLikeAPlainOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := VisibilityConfig{Visibility: 10 * time.Second, Capacity: 1000}
		q, plain := newVisibleQueue(&c), &plainQueue{config: &c}
		clock := time.Now()
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			clock = clock.Add(time.Duration(rapid.SampledFrom([]int{0, 0, 0, 1, 3, 9, 10, 11, 1000, -3}).Draw(t, "seconds")) * time.Second)
			used := rapid.Uint64Range(1, plain.receipts+2).Draw(t, "receipt")
			switch rapid.SampledFrom([]string{"enqueue", "enqueue", "receive", "receive", "acknowledge", "renew", "release"}).Draw(t, "step") {
			case "enqueue":
				plain.last++
				plain.messages = append(plain.messages, &plainMessage{number: plain.last})
				if err := q.enqueue(boxOf("s", 0, fmt.Sprint(plain.last)), clock); err != nil {
					t.Fatal(err)
				}
			case "receive":
				limit := rapid.IntRange(0, 4).Draw(t, "limit")
				got, dead := q.receive(limit, clock)
				var words []string
				for _, c := range got {
					words = append(words, fmt.Sprintf("%s+%d", c.Events.Value(0), c.Attempts))
				}
				if w := plain.receive(limit, clock); !slices.Equal(words, w) || len(dead) > 0 {
					t.Fatalf("received %v, want %v", words, w)
				}
			case "acknowledge":
				m := plain.find(used, clock)
				if ok := q.acknowledge(used, clock); ok != (m != nil) {
					t.Fatalf("acknowledge %d: %t", used, ok)
				}
				if m != nil {
					plain.messages = slices.DeleteFunc(plain.messages, func(x *plainMessage) bool { return x == m })
				}
			case "renew":
				m := plain.find(used, clock)
				if ok := q.renew(used, clock); ok != (m != nil) {
					t.Fatalf("renew %d: %t", used, ok)
				}
				if m != nil {
					m.until = clock.Add(c.Visibility)
				}
			case "release":
				q.release([]uint64{used})
				if m := plain.find(used, time.Time{}); m != nil {
					m.receipt = 0
				}
			}
			checkVisible(t, q)
		}
	})
}

// checkVisible checks the invariants of a queue.
func checkVisible(t *rapid.T, q *visibleQueue) {
	for i, m := range q.due {
		if m.place != i || q.hidden[m.receipt] != m {
			t.Fatalf("message %d is at %d of due, as it says at %d", m.number, i, m.place)
		}
	}
	if len(q.hidden) != len(q.due) || q.events != len(q.hidden)+q.ready() {
		t.Fatalf("%d hidden, %d due, %d ready, %d events", len(q.hidden), len(q.due), q.ready(), q.events)
	}
	for _, m := range append(slices.Clone(q.fresh), q.again...) {
		if m.place != -1 {
			t.Fatalf("message %d is ready and in due", m.number)
		}
	}
}

// A queue that is shut down, and one more run, while a read waits for what is
// hidden: nothing is lost and nobody waits for ever.
func TestReadersComeAndGoWhileAllIsHidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVisible(t, VisibilityConfig{Visibility: time.Second, Hold: 1})
		for i := range 1000 {
			v.put(fmt.Sprint(i))
		}
		r := v.receiver()
		want(t, "read", len(v.read(r, 1000)), 1000)
		other := v.receiver()
		ctx, cancel := context.WithCancel(t.Context())
		waited := make(chan error, 2)
		go func() { waited <- other.(Waiter).Wait(ctx) }() // ends when they are due
		go func() { waited <- r.(Waiter).Wait(ctx) }()     // and this one with it
		synctest.Wait()
		begin := time.Now()
		for range 2 {
			if err := <-waited; err != nil {
				t.Error(err)
			}
		}
		want(t, "waited", time.Since(begin), time.Second)
		want(t, "read again", len(v.read(other, -1)), 1000)
		go func() { waited <- r.(Waiter).Wait(ctx) }() // ends with ctx
		synctest.Wait()
		cancel()
		if err := <-waited; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		v.shutdown(r)
		v.shutdown(other)
		want(t, "given back", v.queue.Stats()[0].Ready, 1000)
	})
}
