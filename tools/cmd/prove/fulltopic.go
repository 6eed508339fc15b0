package main

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

var fullTopic = attack{
	name:  "full-topic",
	claim: "a full topic answers 429 with Retry-After, keeps its bound, and takes more when there is room",
	fault: "a producer that is faster than the slowest group, with no pause",
	run: func(ctx context.Context, l *lab) (string, error) {
		dir, err := l.dir()
		if err != nil {
			return "", err
		}
		const capacity, batch = 1000, 100
		n, err := l.startNode(ctx, nodeConfig{Dir: dir, Durability: "written", Partitions: 2, Capacity: capacity, SlowRate: 400, Drain: time.Second})
		if err != nil {
			return "", err
		}
		defer n.stop()
		accepted, refused, afterwards := 0, 0, 0
		for accepted < 3*capacity {
			a, err := n.post(ctx, "application/x-ndjson", lines(accepted, batch))
			if err != nil {
				return "", err
			}
			switch a.status {
			case http.StatusAccepted:
				accepted += batch
				if refused > 0 {
					afterwards++
				}
				if held := accepted - n.reported("emails"); held > capacity {
					return "", fmt.Errorf("%d events were accepted and not settled, the capacity is %d", held, capacity)
				}
			case http.StatusTooManyRequests:
				refused++
				if s, err := strconv.Atoi(a.header.Get("Retry-After")); err != nil || s < 1 {
					return "", fmt.Errorf("429 with Retry-After %q", a.header.Get("Retry-After"))
				}
				select {
				case <-time.After(50 * time.Millisecond):
				case <-ctx.Done():
					return "", ctx.Err()
				}
			default:
				return "", fmt.Errorf("status %d: %s", a.status, a.body)
			}
		}
		if refused == 0 || afterwards == 0 {
			return "", fmt.Errorf("%d refused, %d accepted after a refusal: the topic was never full", refused, afterwards)
		}
		return fmt.Sprintf("capacity %d: %d events accepted, %d requests refused with 429", capacity, accepted, refused), nil
	},
}
