package queue

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"strings"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
	"github.com/penstock/penstock/segfile"
)

// WhenFull says what a producer does when a topic has no capacity left.
type WhenFull uint8

const (
	// Wait makes producers wait in line until there is room.
	Wait WhenFull = iota
	// Fail makes producers fail at once with [penstock.ErrFull].
	Fail
	// DropOldest makes room by moving groups past the oldest events: past what the
	// request lacks, or a 64th of Capacity or CapacityBytes where that is more;
	// producers wait only for what is still being appended, and for each other's
	// turn to do so. On disk only, with Config.HardRetention.
	DropOldest
)

// String returns the mode as it stands in configuration: wait, fail or
// drop_oldest.
func (w WhenFull) String() string {
	switch w {
	case Wait:
		return "wait"
	case Fail:
		return "fail"
	case DropOldest:
		return "drop_oldest"
	}
	return fmt.Sprintf("when_full(%d)", uint8(w))
}

// maxPartitions and maxSegment, in bytes, bound what a mistyped configuration
// can allocate. maxCapacity is what a budget can count.
const (
	maxPartitions = 1 << 16
	maxSegment    = 1 << 30
	maxCapacity   = math.MaxInt >> 1
)

// Config of a [Topic]. The zero value of a field is its default; a negative
// number is an error that names the field.
type Config[T any] struct {
	// Name of the topic. Required; not blank. On disk it is the name of a
	// directory, in which bytes other than a-z, 0-9, '.', '_' and '-' take three
	// bytes of 240, and so do a dot that begins or ends it and the first letter of
	// the name of a device (segfile.EscapeName).
	Name string
	// Partitions is how many independent runs the topic has; default 1, at
	// most 65,536. Order is kept inside a partition only.
	Partitions int
	// Capacity is how many events the topic holds over all partitions: those
	// that some group has not committed yet. 0 is unbounded.
	Capacity int
	// CapacityBytes is the same in bytes: the sizes of those events add up to
	// it at most. 0 is unbounded. The size of an event is what Size says, which
	// a topic in memory needs then; on disk it is the bytes of its encoded
	// value and of its id, key and headers, whatever Size says. An event that
	// alone is larger is refused with [penstock.ErrTooLarge]. A topic on disk
	// reads at Open what its groups have not committed, to know its size.
	CapacityBytes penstock.Bytes
	// CapacityDisk bounds what the segment files of a topic on disk take, those
	// of all partitions together, with the disk space that the active ones have in
	// advance and what is claimed for the next ones; 0 is unbounded. Room comes
	// back when every group has committed all events of a segment, whose file is
	// deleted then. It holds two segments per partition at the least, and excludes
	// SegmentEvents and the Retain fields, whose segments would make no room.
	// Positions of groups, retry logs and files that somebody still reads are not
	// counted. A topic that takes more when it is opened accepts nothing until it
	// takes less.
	CapacityDisk penstock.Bytes
	// MaxEvent is the largest event that is accepted, measured in the same way;
	// 0 is no limit. A request with a larger one is refused whole, with
	// [penstock.ErrTooLarge], before anything of it was admitted or routed.
	MaxEvent penstock.Bytes
	// WhenFull says what producers do when one of these capacities is used
	// up: Wait, the default, Fail or DropOldest.
	WhenFull WhenFull
	// SegmentSize is the number of events per piece of memory, of 1 GiB at
	// most. 0 lets it grow with the backlog from 64 to 4096, or less when
	// events are large. Memory only.
	SegmentSize int

	// Key, if set, chooses the partition of an event by [penstock.HashKey] of
	// its key: equal keys share a partition and keep their order. It must be
	// deterministic and safe for concurrent use. Nil is round robin per event.
	Key func(T) string
	// Router, if set, chooses the partition instead; see [NumericRouter],
	// [PrefixRouter] and [RouterFunc]. It excludes Key.
	Router Router[T]
	// Size, if set, tells the size of an event, for limits in bytes. It must
	// be deterministic and safe for concurrent use. Where a produce call asks
	// it, a negative size fails the call with [penstock.ErrInvalid] and a panic
	// with a [penstock.PanicError]; nothing is accepted then. Where a run of a
	// group asks it, such an event counts no bytes.
	Size func(T) penstock.Bytes

	// Dir is the data directory of a topic on disk, which may hold several
	// topics; "" keeps it in memory. It is made when it does not exist; its parent
	// must.
	Dir string
	// Codec turns events into bytes and back. Required with Dir.
	Codec penstock.Codec[T]
	// Durability is the level that an acknowledgement has reached. Topics in
	// memory know Memory only, topics on disk Written and Synced, the default.
	Durability penstock.Durability
	// SegmentBytes is the size of a segment file, from 8 KiB to 4 GiB; 0 is
	// 64 MiB. SegmentEvents, if not 0, is how many events a segment takes at
	// most. Both may change between opens.
	SegmentBytes  penstock.Bytes
	SegmentEvents int
	// RetainSegments is how many consumed segments each partition of a topic on
	// disk keeps, the newest ones: full segment files of which every known group
	// has committed all. 0 deletes them at once; math.MaxInt keeps all. On a
	// topic without a capacity, a new group begins with what is kept, and
	// [Group.SeekOffset] can go back to it. It may change between opens, and is
	// not a limit: what some group needs is kept besides.
	RetainSegments int
	// RetainAge, RetainBytes and RetainEvents say by age and size what each
	// partition of a topic on disk keeps besides, whole segments: those with an
	// event that is younger than RetainAge, that is one of the newest
	// RetainEvents, or that has less than RetainBytes behind it. What is beyond
	// one of them, or beyond RetainSegments if that is set, is deleted when every
	// known group has committed it; on a topic without a group at once
	// ([Stats].Expired). What is idle is looked at every sixteenth of RetainAge, at
	// least once a minute. 0 is no limit.
	RetainAge    time.Duration
	RetainBytes  penstock.Bytes
	RetainEvents int
	// HardRetention lets these three, and DropOldest, pass a group that has not
	// committed: it goes on behind what was deleted and is told so. A pull
	// returns a [*SkippedError], GroupConfig.OnSkip is called, and
	// GroupStats.Skipped counts the events. Such a topic has no readers.
	HardRetention bool
	// GroupTTL forgets a group that nobody has had open for so long, as
	// [Topic.DeleteGroup] does, with what is parked; 0 keeps it for ever. It counts
	// from the last commit or the end of its use, over restarts, and is looked at
	// every sixteenth of it, at least once an hour.
	GroupTTL time.Duration
	// SyncEvery says when events are synced in the background at level
	// written; 0 is after 100 ms.
	SyncEvery segfile.SyncEvery
	// WritePath says how small events get into the files of a topic on disk at
	// level written: 0, segfile.WriteAuto, stores them through a mapping where the
	// file system is known to keep what it was given, segfile.WritePwrite writes
	// all of them, and segfile.WriteMapping has Open refuse any other file system
	// with [penstock.ErrUnsupported]. The variable PENSTOCK_MMAP=off makes it
	// WritePwrite. It may change between opens. [PartitionStats] shows which it is.
	WritePath segfile.WritePath
	fs        vfs.FS // of tests, else nil; once the topic is open, that of its log
	hidden    bool   // the topic is a part of another one, and is not shown by itself

	// Logger receives what an operator should know; nil is slog.Default().
	Logger *slog.Logger
}

// validate fills defaults and names the first bad field. It touches nothing
// outside the configuration (BQ-3).
func (c *Config[T]) validate() error {
	if strings.TrimSpace(c.Name) == "" {
		return &penstock.FieldError{Field: "Name", Reason: "is blank"}
	}
	for _, f := range []struct {
		name  string
		value int
		most  int
	}{
		{"Partitions", c.Partitions, maxPartitions},
		{"Capacity", c.Capacity, maxCapacity},
		{"SegmentSize", c.SegmentSize, maxSegment / max(1, int(reflect.TypeFor[T]().Size()))},
		{"RetainSegments", c.RetainSegments, math.MaxInt},
		{"RetainEvents", c.RetainEvents, math.MaxInt},
	} {
		if err := inRange(f.name, f.value, f.most); err != nil {
			return err
		}
	}
	if err := c.validateBytes(); err != nil {
		return err
	}
	if c.WhenFull > DropOldest {
		return &penstock.FieldError{Field: "WhenFull", Reason: fmt.Sprintf("%d is none of Wait, Fail and DropOldest", uint8(c.WhenFull))}
	}
	if c.Key != nil && c.Router != nil {
		return &penstock.FieldError{Field: "Router", Reason: "Key is set too; give one of them"}
	}
	if c.Key != nil {
		c.Router = hashRouter[T]{key: c.Key}
	}
	if r, ok := c.Router.(interface{ check() error }); ok {
		if err := r.check(); err != nil {
			return err
		}
	}
	if c.Partitions == 0 {
		c.Partitions = 1
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if err := c.validateRetention(); err != nil {
		return err
	}
	return c.validateStorage()
}

func (c *Config[T]) validateBytes() error {
	for _, f := range []struct {
		name  string
		value penstock.Bytes
	}{{"CapacityBytes", c.CapacityBytes}, {"MaxEvent", c.MaxEvent}} {
		switch {
		case f.value < 0:
			return &penstock.FieldError{Field: f.name, Reason: fmt.Sprintf("%d is negative", int64(f.value))}
		case f.value > 0 && c.Size == nil && c.Dir == "":
			return &penstock.FieldError{Field: f.name, Reason: "Size, which tells the size of an event, is nil"}
		}
	}
	return nil
}

func (c *Config[T]) validateStorage() error {
	switch {
	case c.Dir == "" && c.Durability > penstock.Memory:
		return &penstock.FieldError{Field: "Durability", Reason: c.Durability.String() + " needs Dir"}
	case c.Dir == "" && c.SegmentBytes != 0:
		return diskOnly("SegmentBytes")
	case c.Dir == "" && c.CapacityDisk != 0:
		return diskOnly("CapacityDisk")
	case c.CapacityDisk > 0 && (c.RetainSegments > 0 || c.limits() != segfile.Limits{}):
		return &penstock.FieldError{Field: "CapacityDisk", Reason: "excludes RetainSegments, RetainAge, RetainBytes and RetainEvents: what they keep would make no room"}
	case c.Dir == "" && c.SegmentEvents != 0:
		return diskOnly("SegmentEvents")
	case c.Dir == "" && c.RetainSegments != 0:
		return diskOnly("RetainSegments")
	case c.Dir == "" && c.SyncEvery != segfile.SyncEvery{}:
		return diskOnly("SyncEvery")
	case c.Dir == "" && c.WritePath != segfile.WriteAuto:
		return diskOnly("WritePath")
	case c.Dir != "" && c.Codec == nil:
		return &penstock.FieldError{Field: "Codec", Reason: "is nil; a topic on disk needs one"}
	case c.Dir != "" && c.Durability == penstock.Memory:
		return &penstock.FieldError{Field: "Durability", Reason: "memory excludes Dir"}
	case c.Dir != "" && c.Durability > penstock.Synced:
		return &penstock.FieldError{Field: "Durability", Reason: c.Durability.String() + " is not a level"}
	case c.Dir != "" && c.SegmentSize != 0:
		return &penstock.FieldError{Field: "SegmentSize", Reason: "is for topics in memory; Dir is set"}
	}
	if c.Durability == penstock.DurabilityDefault {
		c.Durability = penstock.Memory
		if c.Dir != "" {
			c.Durability = penstock.Synced
		}
	}
	return nil
}

// nameField is an error of the log in the words of this package, whose topics have
// a Name.
func nameField(topic string, err error) error {
	if f, ok := errors.AsType[*penstock.FieldError](err); ok && f.Field == "Topic" {
		return fmt.Errorf("open topic %q: %w", topic, &penstock.FieldError{Field: "Name", Reason: f.Reason})
	}
	return err
}

func diskOnly(field string) error {
	return &penstock.FieldError{Field: field, Reason: "is for topics on disk; Dir is empty"}
}

// inRange refuses a value outside [0, most].
func inRange(field string, value, most int) error {
	switch {
	case value < 0:
		return &penstock.FieldError{Field: field, Reason: fmt.Sprintf("%d is negative", value)}
	case value > most:
		return &penstock.FieldError{Field: field, Reason: fmt.Sprintf("%d is above %d", value, most)}
	}
	return nil
}
