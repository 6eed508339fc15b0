package queue

import (
	"fmt"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/settle"
)

// OnFail says what [Group.Run] does with an event that fails for long.
type OnFail uint8

const (
	// ParkKey moves the event and all later events of its key out of the way,
	// into the retry log of the group: the commit passes them, other keys go on,
	// and the key keeps its order. An event without a key moves alone.
	ParkKey OnFail = iota
	// Block retries the event in its place: later events of its partition wait.
	// What had been parked before, on disk, is delivered as with ParkKey.
	Block
)

// String returns the mode as it stands in configuration: park_key or block.
func (f OnFail) String() string {
	switch f {
	case ParkKey:
		return "park_key"
	case Block:
		return "block"
	}
	return fmt.Sprintf("on_fail(%d)", uint8(f))
}

// parks reports whether Run parks keys that fail. With AutoCommit nothing is
// retried.
func (c *GroupConfig) parks() bool { return c.OnFail == ParkKey && !c.AutoCommit }

func (c *GroupConfig) validateParking() error {
	switch {
	case c.OnFail > Block:
		return &penstock.FieldError{Field: "OnFail", Reason: fmt.Sprintf("%d is neither ParkKey nor Block", uint8(c.OnFail))}
	case c.ParkAfter < 0:
		return &penstock.FieldError{Field: "ParkAfter", Reason: c.ParkAfter.String() + " is negative"}
	case c.ParkAfter > 0 && c.OnFail == Block:
		return &penstock.FieldError{Field: "ParkAfter", Reason: "is for OnFail ParkKey; it is Block"}
	}
	if c.ParkAfter == 0 {
		c.ParkAfter = settle.DefaultParkAfter
	}
	return nil
}
