package main

import "github.com/penstock/penstock/internal/measure"

// What one writes by hand.

var channel = peer{
	name: "chan", lacks: "groups, partitions, batches, replay, a commit: who receives an event has it, and it is gone",
	open: func(groups, capacity, _ int) (*conn, error) {
		if groups > 1 {
			return nil, nil
		}
		ch := make(chan int, capacity)
		return &conn{
			produce: func(events []int) error {
				for _, v := range events {
					ch <- v
				}
				return nil
			},
			consume: []func(*order, int) error{func(k *order, n int) error { return receive(ch, k, n) }},
		}, nil
	},
}

// receive takes n events out of a channel.
func receive(ch <-chan int, k *order, n int) error {
	for range n {
		k.see(<-ch)
	}
	return nil
}

var swapped = peer{
	name: "mutex and swapped slices", lacks: "groups, partitions, replay, a commit; a consumer takes everything that is there at once",
	open: func(groups, capacity, _ int) (*conn, error) {
		if groups > 1 {
			return nil, nil
		}
		s := measure.NewSwap[int](capacity)
		spare := make([]int, 0, capacity)
		return &conn{
			produce: func(events []int) error {
				for _, v := range events {
					s.Push(v)
				}
				return nil
			},
			batch: func(events []int, n int) error {
				for rest := events; len(rest) > 0; {
					part := rest[:min(n, len(rest))]
					rest = rest[len(part):]
					s.PushAll(part)
				}
				return nil
			},
			consume: []func(*order, int) error{func(k *order, n int) error {
				for k.count < n {
					spare = s.Take(spare)
					for _, v := range spare {
						k.see(v)
					}
				}
				return nil
			}},
			consumeBatch: []func(*order, int, int) error{func(k *order, n, size int) error {
				for k.count < n {
					spare = s.Take(spare)
					for rest := spare; len(rest) > 0; {
						part := rest[:min(size, len(rest))]
						rest = rest[len(part):]
						k.run(part)
					}
				}
				return nil
			}},
		}, nil
	},
}

var recycled = peer{
	name: "chan of recycled batches", lacks: "single events, groups, partitions, replay, a commit; the code that makes and returns batches is the user's", batches: true,
	open: func(_, capacity, size int) (*conn, error) {
		r := measure.NewRecycled[int](size, capacity)
		return &conn{
			batch: func(events []int, n int) error {
				for rest := events; len(rest) > 0; {
					part := rest[:min(n, len(rest))]
					rest = rest[len(part):]
					r.Full <- append((<-r.Free)[:0], part...)
				}
				return nil
			},
			consume: []func(*order, int) error{nil},
			consumeBatch: []func(*order, int, int) error{func(k *order, n, _ int) error {
				for k.count < n {
					vs := <-r.Full
					k.run(vs)
					r.Free <- vs
				}
				return nil
			}},
		}, nil
	},
}
