package main

import (
	"bufio"
	"errors"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/segfile"
)

type dumpCmd struct {
	logDir
	Partition  int    `short:"p" default:"-1" help:"Only this partition; all by default."`
	From       uint64 `help:"First offset; the earliest that is kept by default."`
	To         uint64 `help:"Offset behind the last one; the end by default."`
	Limit      uint64 `short:"n" help:"At most so many events; 0 is all."`
	Unsynced   bool   `help:"Also what is not known to be synced: a power loss may take it."`
	SkipDamage bool   `help:"Go on behind damage, and tell on standard error what is lost."`
}

// Help is shown by --help.
func (dumpCmd) Help() string {
	return `Prints the stored events: one line each, with -o json one object per line. Takes no lock and changes nothing.
Damage ends it with exit code 6, unless --skip-damage passes it.

Example:

    penstock dump data -t orders -p 0 --from 1000 -n 10`
}

// dumped is an event in JSON.
type dumped struct {
	Topic       string          `json:"topic"`
	Partition   int             `json:"partition"`
	Offset      penstock.Offset `json:"offset"`
	Appended    time.Time       `json:"appended"`
	Epoch       uint32          `json:"epoch"`
	ID          string          `json:"id,omitempty"`
	Key         string          `json:"key,omitempty"`
	Time        *time.Time      `json:"time,omitempty"`
	Header      []headerField   `json:"header,omitempty"`
	ContentType string          `json:"content_type,omitempty"`
	Payload     *string         `json:"payload,omitempty"` // when it is UTF-8
	Bytes       []byte          `json:"payload_base64,omitempty"`
	Error       string          `json:"envelope_error,omitempty"`
}

// headerField is a field of an event's header in JSON.
type headerField struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// errEnough ends a dump that has printed as many events as were asked for.
var errEnough = errors.New("enough")

// Run prints.
func (c *dumpCmd) Run(e *env) (err error) {
	defer func() { err = c.told(err) }()
	if c.To > 0 && c.To < c.From {
		return &failure{code: exitUsage, what: fmt.Sprintf("--to %d is below --from %d", c.To, c.From), fix: "--to is the offset behind the last event that is printed"}
	}
	out := bufio.NewWriter(e.stdout)
	printed := uint64(0)
	err = c.each(false, func(in *segfile.Inspection) error {
		about := in.About()
		if err := onePartition(about.Topic, c.Partition, about.Partitions); err != nil {
			return err
		}
		for id := range about.Partitions {
			if c.Partition >= 0 && c.Partition != id {
				continue
			}
			if err := c.partition(e, in, id, out, &printed); err != nil {
				return err
			}
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	if ferr := out.Flush(); !errors.Is(err, ferr) { // it is the same when a print has failed
		err = errors.Join(err, ferr)
	}
	return err
}

func (c *dumpCmd) partition(e *env, in *segfile.Inspection, id int, out *bufio.Writer, printed *uint64) error {
	topic := in.About().Topic
	config := segfile.DumpConfig{Partition: id, From: penstock.Offset(c.From), To: penstock.Offset(c.To), Unsynced: c.Unsynced}
	if c.SkipDamage {
		config.Skip = func(lost *penstock.CorruptError) error {
			fmt.Fprintf(e.stderr, "lost: %v\n", lost)
			return nil
		}
	}
	config.Reclaimed = func(first, end penstock.Offset) {
		fmt.Fprintf(e.stderr, "%s, partition %d: events %d to %d were reclaimed by the process that uses the topic\n", topic, id, first, end-1)
	}
	_, unsynced, err := in.Dump(e.ctx, config, func(r segfile.Records) error {
		for i := range r.N {
			if c.Limit > 0 && *printed == c.Limit {
				return errEnough
			}
			d := describe(r, i)
			d.Topic, d.Partition = topic, id
			if err := c.print(out, d); err != nil {
				return err
			}
			*printed++
		}
		return nil
	})
	if errors.Is(err, penstock.ErrOffsetOutOfRange) && !errors.Is(err, penstock.ErrCorrupt) {
		return &failure{code: exitUsage, what: fmt.Sprintf("%s, partition %d: %v", topic, id, err), err: err,
			fix: "leave --from out, and the dump begins at the first event that is kept"}
	}
	if err == nil && unsynced > 0 && c.To == 0 {
		fmt.Fprintf(e.stderr, "%s, partition %d: %d more events are not known to be synced; --unsynced prints them\n", topic, id, unsynced)
	}
	return err
}

// describe takes a record apart.
func describe(r segfile.Records, i int) *dumped {
	d := &dumped{Offset: r.First + penstock.Offset(i), Appended: time.Unix(0, r.Time).UTC(), Epoch: r.Epoch}
	payload := r.At(i)
	if r.Enveloped() {
		m, body, err := penstock.DecodeEnvelope(payload)
		if err != nil {
			d.Error = err.Error()
		} else {
			payload = body
			d.ID, d.Key, d.ContentType = m.ID, m.Key, m.ContentType
			for _, f := range m.Header {
				d.Header = append(d.Header, headerField(f))
			}
			if !m.Time.IsZero() {
				d.Time = &m.Time
			}
		}
	}
	if utf8.Valid(payload) {
		s := string(payload)
		d.Payload = &s
	} else {
		d.Bytes = payload
	}
	return d
}

func (c *dumpCmd) print(out *bufio.Writer, d *dumped) error {
	if c.json() {
		return encode(out, d)
	}
	fmt.Fprintf(out, "%s %d/%d %s", d.Topic, d.Partition, d.Offset, d.Appended.Format(time.RFC3339Nano))
	for _, f := range [...]struct{ name, value string }{{"id", d.ID}, {"key", d.Key}, {"envelope_error", d.Error}} {
		if f.value != "" {
			fmt.Fprintf(out, " %s=%s", f.name, strconv.Quote(f.value))
		}
	}
	if d.Payload == nil {
		_, err := fmt.Fprintf(out, " %x\n", d.Bytes)
		return err
	}
	_, err := fmt.Fprintf(out, " %s\n", strconv.Quote(*d.Payload))
	return err
}
