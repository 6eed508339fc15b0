package stage_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstock/penstock/stage"
)

func ExampleNewPool() {
	orders := stage.FromSlice("orders", []string{"tea", "coffee", "?", "cake"})
	pool := stage.NewPool("charge", 1, func(_ context.Context, order string) error {
		if order == "?" {
			return errors.New("no such thing")
		}
		fmt.Println("charged", order)
		return nil
	})
	pool.OnFailed(func(order string, err error) { fmt.Println("failed", order, err) })
	g := stage.NewGraph()
	stage.Connect(g, orders, pool)
	fmt.Println(g.Run(context.Background()))
	// Output:
	// charged tea
	// charged coffee
	// failed ? no such thing
	// charged cake
	// <nil>
}

func ExampleNewSlots() {
	calls := stage.FromSlice("calls", []string{"anna", "ben"})
	tries := 0
	sessions := stage.NewSlots("sessions", func(ctx context.Context, who string) (func() error, error) {
		if who == "ben" {
			return nil, errors.New("ben does not answer") // the start: it fails this event, once
		}
		return func() error { // the session: run again when it fails
			if tries++; tries == 1 {
				return errors.New("the line broke")
			}
			fmt.Println(who, "talked")
			return nil
		}, nil
	}, stage.ChildRestart(stage.Transient), stage.ChildTolerance(3, 5*time.Second))
	sessions.OnFailed(func(who string, err error) { fmt.Println("failed:", err) })
	g := stage.NewGraph()
	stage.Connect(g, calls, sessions, stage.Demand(1, 0)) // one slot
	fmt.Println(g.Run(context.Background()))
	// Output:
	// anna talked
	// failed: ben does not answer
	// <nil>
}

func ExampleConsistentHash() {
	type visit struct{ user, page string }
	visits := stage.FromSlice("visits", []visit{{"anna", "/"}, {"ben", "/"}, {"anna", "/cart"}})
	visits.Dispatch(stage.ConsistentHash(func(v *visit) uint64 { return uint64(len(v.user)) }))
	counts := map[string]int{}
	g := stage.NewGraph()
	stage.Connect(g, visits, stage.NewSink("users", func(_ context.Context, in []visit) error {
		for _, v := range in {
			counts[v.user]++ // all visits of a user come here
		}
		return nil
	}))
	fmt.Println(g.Run(context.Background()), counts)
	// Output: <nil> map[anna:2 ben:1]
}
