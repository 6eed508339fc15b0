package queue

import (
	"context"
	"fmt"

	"github.com/penstock/penstock"
)

// fileEngine is the storage of a topic on disk.
//
// This build has none: Open refuses Config.Dir with [penstock.ErrUnsupported].
type fileEngine[T any] struct{}

// filePartition is what the engine keeps per partition.
type filePartition[T any] struct{}

func openFileEngine[T any](*Topic[T]) (*fileEngine[T], error) {
	return nil, fmt.Errorf("topic on disk: %w", penstock.ErrUnsupported)
}

func (*fileEngine[T]) append(context.Context, []T, []penstock.Meta, *plan, *Receipt) error {
	return penstock.ErrUnsupported
}

func (*fileEngine[T]) source(int, string, Start) (source[T], penstock.Offset, error) {
	return nil, 0, penstock.ErrUnsupported
}

func (*fileEngine[T]) close() error { return nil }

func (*filePartition[T]) end() penstock.Offset      { return 0 }
func (*filePartition[T]) earliest() penstock.Offset { return 0 }
