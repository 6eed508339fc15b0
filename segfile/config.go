package segfile

import (
	"fmt"
	"log/slog"
	"time"
	"unicode/utf8"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// Sizes and their limits.
const (
	defaultSegmentBytes = 64 * penstock.MiB
	defaultMaxFrame     = 64 * penstock.MiB
	defaultMaxPending   = 16 * penstock.MiB
	defaultInterval     = 100 * time.Millisecond
	maxSegmentBytes     = 4 * penstock.GiB
	minSegmentBytes     = headerSize + 4*penstock.KiB
	maxFrameBytes       = 1 * penstock.GiB // of any configuration: a reader allocates as much
	maxPartitions       = 99_999           // five digits in a directory name
	maxIDBytes          = 128              // router, codec and tenant ids
)

// SyncEvery says when data is synced in the background at level written:
// whatever comes first. At level synced it does nothing.
type SyncEvery struct {
	Interval time.Duration  // since the first unsynced write; 0 = 100 ms
	Events   int            // unsynced events; 0 = no such limit
	Bytes    penstock.Bytes // unsynced bytes; 0 = no such limit
}

// Config describes a topic on disk.
type Config struct {
	FS         vfs.FS // nil = the operating system's
	Dir        string // data directory; made with mode 0700 when it is missing
	Topic      string // the topic's name; its directory is Dir/EscapeName(Topic)
	Partitions int    // 0 = 1; fixed when the topic is made

	// Router, Codec and Tenant are recorded when the topic is made and must be
	// the same afterwards: at most 128 bytes of UTF-8 each.
	Router string
	Codec  string
	Tenant string

	SegmentBytes  penstock.Bytes // size of a segment file, from 8 KiB to 4 GiB; 0 = 64 MiB; may change between opens
	SegmentEvents int            // a segment takes no more events; 0 = no such limit

	Durability penstock.Durability // Synced or Written; 0 = Synced
	SyncEvery  SyncEvery
	WritePath  WritePath // at level written; 0 = WriteAuto. The variable PENSTOCK_MMAP=off makes it WritePwrite

	// MaxFrame is the largest frame that is written or read, as many bytes as
	// [Frame.Size] gives. 0 = 64 MiB, or what fits a segment when that is less.
	MaxFrame penstock.Bytes
	// MaxPending is how many bytes of frames may wait for the committer of one
	// partition; [Partition.Append] blocks above it. 0 = 16 MiB.
	MaxPending penstock.Bytes

	// CapacityDisk bounds what the segment files of all partitions take on disk,
	// the space that is allocated in advance among it; 0 is no bound. While a
	// further segment would exceed it, appends are refused with
	// [penstock.ErrFull], before anything is appended, also when the active
	// segment has some room left; [Partition.Trim] makes room. It must hold two
	// segments per partition, excludes SegmentEvents, and lowers MaxPending to
	// half of what a segment has for frames. A log that takes more when it is
	// opened takes no appends until it takes less. Files that a reader still has
	// open and was trimmed are not counted any more.
	CapacityDisk penstock.Bytes

	// PassOver opens a group whose position lies below the first event kept, as a
	// trim leaves it that waits for no group: [Cursor.Pass] moves it. Without it
	// such a group is refused with [penstock.ErrOffsetOutOfRange].
	PassOver bool

	// StampPositions notes with each stored position when that was.
	StampPositions bool

	// Progress, if set, is called while an open reads the end of a partition
	// that was not closed cleanly, before each block. It must not block.
	Progress func(Progress)

	Logger *slog.Logger // nil = slog.Default()
}

func (c *Config) validate() error {
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"Partitions", int64(c.Partitions)}, {"SegmentBytes", int64(c.SegmentBytes)},
		{"SegmentEvents", int64(c.SegmentEvents)}, {"SyncEvery.Interval", int64(c.SyncEvery.Interval)},
		{"SyncEvery.Events", int64(c.SyncEvery.Events)}, {"SyncEvery.Bytes", int64(c.SyncEvery.Bytes)},
		{"MaxFrame", int64(c.MaxFrame)}, {"MaxPending", int64(c.MaxPending)},
		{"CapacityDisk", int64(c.CapacityDisk)},
	} {
		if f.value < 0 {
			return &penstock.FieldError{Field: f.name, Reason: fmt.Sprintf("%d is negative", f.value)}
		}
	}
	for _, f := range []struct{ name, value string }{{"Router", c.Router}, {"Codec", c.Codec}, {"Tenant", c.Tenant}} {
		if len(f.value) > maxIDBytes {
			return &penstock.FieldError{Field: f.name, Reason: fmt.Sprintf("%d bytes, at most %d", len(f.value), maxIDBytes)}
		}
		if !utf8.ValidString(f.value) { // topic.json would not give it back
			return &penstock.FieldError{Field: f.name, Reason: fmt.Sprintf("%q is not UTF-8", f.value)}
		}
	}
	if c.Dir == "" {
		return &penstock.FieldError{Field: "Dir", Reason: "is empty"}
	}
	if err := checkName("Topic", c.Topic); err != nil {
		return err
	}
	c.fill()
	return c.limits()
}

// fill puts the defaults in.
func (c *Config) fill() {
	if c.FS == nil {
		c.FS = vfs.OS()
	}
	if c.Partitions == 0 {
		c.Partitions = 1
	}
	if c.SegmentBytes == 0 {
		c.SegmentBytes = defaultSegmentBytes
	}
	if c.Durability == penstock.DurabilityDefault {
		c.Durability = penstock.Synced
	}
	if c.SyncEvery.Interval == 0 {
		c.SyncEvery.Interval = defaultInterval
	}
	if c.MaxFrame == 0 {
		c.MaxFrame = min(defaultMaxFrame, frameRoom(c.SegmentBytes))
	}
	if c.MaxPending == 0 {
		c.MaxPending = defaultMaxPending
	}
	if c.CapacityDisk > 0 {
		c.MaxPending = min(c.MaxPending, frameRoom(c.SegmentBytes)/2)
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
}

// frameRoom is what a segment of the given size leaves for one frame, with
// room for the seal frame behind it.
func frameRoom(segment penstock.Bytes) penstock.Bytes {
	return segment - headerSize - penstock.Bytes(sealSize(indexEntries(int64(segment))))
}

func (c *Config) limits() error {
	if c.Partitions > maxPartitions {
		return &penstock.FieldError{Field: "Partitions", Reason: fmt.Sprintf("%d, at most %d", c.Partitions, maxPartitions)}
	}
	if c.SegmentBytes < minSegmentBytes || c.SegmentBytes > maxSegmentBytes {
		return &penstock.FieldError{Field: "SegmentBytes", Reason: fmt.Sprintf("%v is not within %v to %v", c.SegmentBytes, minSegmentBytes, maxSegmentBytes)}
	}
	if c.MaxFrame < frameHeaderSize || c.MaxFrame > min(frameRoom(c.SegmentBytes), maxFrameBytes) { // BQ-8
		return &penstock.FieldError{Field: "MaxFrame", Reason: fmt.Sprintf("%v is not within %dB to %v, which a segment of %v leaves for a frame",
			c.MaxFrame, frameHeaderSize, min(frameRoom(c.SegmentBytes), maxFrameBytes), c.SegmentBytes)}
	}
	if c.Durability != penstock.Written && c.Durability != penstock.Synced {
		return &penstock.FieldError{Field: "Durability", Reason: fmt.Sprintf("%v is not written or synced", c.Durability)}
	}
	if c.WritePath > WriteMapping {
		return &penstock.FieldError{Field: "WritePath", Reason: fmt.Sprintf("%v is not auto, pwrite or mapping", c.WritePath)}
	}
	if c.WritePath == WriteMapping && c.Durability != penstock.Written {
		return &penstock.FieldError{Field: "WritePath", Reason: fmt.Sprintf("mapping needs level written, not %v: a sync costs more than what a mapping saves", c.Durability)}
	}
	switch least := 2 * penstock.Bytes(c.Partitions) * c.SegmentBytes; {
	case c.CapacityDisk == 0:
	case c.CapacityDisk < least:
		return &penstock.FieldError{Field: "CapacityDisk", Reason: fmt.Sprintf("%v, and two segments of %v in each of %d partitions take %v", c.CapacityDisk, c.SegmentBytes, c.Partitions, least)}
	case c.SegmentEvents > 0:
		return &penstock.FieldError{Field: "CapacityDisk", Reason: "excludes SegmentEvents: nobody knows how many segments a request takes then"}
	}
	return nil
}
