package main

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"code.cloudfoundry.org/go-diodes"
	"github.com/Workiva/go-datastructures/queue"
)

// Queues of collections of data structures.

var workiva = peer{
	name: "Workiva Queue", module: "github.com/Workiva/go-datastructures", lacks: "types, backpressure (it grows without bound), groups, partitions, replay, a commit",
	open: func(groups, capacity, size int) (*conn, error) {
		if groups > 1 {
			return nil, nil
		}
		q := queue.New(int64(capacity))
		take := func(k *order, n, size int) error {
			for k.count < n {
				vs, err := q.Get(int64(size))
				if err != nil {
					return err
				}
				for _, v := range vs {
					k.see(v.(int))
				}
			}
			return nil
		}
		boxed := make([]any, 0, capacity)
		return &conn{
			produce: func(events []int) error {
				for _, v := range events {
					if err := q.Put(v); err != nil {
						return err
					}
				}
				return nil
			},
			batch: func(events []int, n int) error {
				for rest := events; len(rest) > 0; {
					part := rest[:min(n, len(rest))]
					rest = rest[len(part):]
					boxed = boxed[:0]
					for _, v := range part {
						boxed = append(boxed, v)
					}
					if err := q.Put(boxed...); err != nil {
						return err
					}
				}
				return nil
			},
			consume:      []func(*order, int) error{func(k *order, n int) error { return take(k, n, size) }},
			consumeBatch: []func(*order, int, int) error{take},
			close:        func() error { q.Dispose(); return nil },
		}, nil
	},
}

var workivaRing = peer{
	name: "Workiva RingBuffer", module: "github.com/Workiva/go-datastructures", lacks: "types, waiting (callers spin), groups, partitions, batches, replay, a commit",
	open: func(groups, capacity, _ int) (*conn, error) {
		if groups > 1 {
			return nil, nil
		}
		q := queue.NewRingBuffer(uint64(capacity))
		return &conn{
			produce: func(events []int) error {
				for _, v := range events {
					if err := q.Put(v); err != nil {
						return err
					}
				}
				return nil
			},
			consume: []func(*order, int) error{func(k *order, n int) error {
				for range n {
					v, err := q.Get()
					if err != nil {
						return err
					}
					k.see(v.(int))
				}
				return nil
			}},
			close: func() error { q.Dispose(); return nil },
		}, nil
	},
}

// A diode overwrites what was not read in time. Its ring has room for a whole
// iteration here, so that nothing is; what it holds are pointers, into the
// producer's slice.
var diode = peer{
	name: "go-diodes OneToOne with Waiter", module: "code.cloudfoundry.org/go-diodes", lacks: "delivery: it drops what is not read in time; types, several producers, groups, partitions, batches, replay, a commit",
	open: func(groups, capacity, _ int) (*conn, error) {
		if groups > 1 {
			return nil, nil
		}
		var dropped atomic.Int64
		d := diodes.NewWaiter(diodes.NewOneToOne(capacity, diodes.AlertFunc(func(missed int) { dropped.Add(int64(missed)) })))
		return &conn{
			produce: func(events []int) error {
				for i := range events {
					d.Set(diodes.GenericDataType(unsafe.Pointer(&events[i])))
				}
				return nil
			},
			consume: []func(*order, int) error{func(k *order, n int) error {
				for range n {
					data := d.Next()
					if data == nil {
						return errors.New("the diode has ended")
					}
					k.see(*(*int)(data))
				}
				if missed := dropped.Load(); missed > 0 {
					return fmt.Errorf("%d events were dropped", missed)
				}
				return nil
			}},
		}, nil
	},
}
