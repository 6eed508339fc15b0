package main

import (
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/segfile"
)

type segmentsCmd struct{ logDir }

// Help is shown by --help.
func (segmentsCmd) Help() string {
	return `Lists the segment files: what they hold, and which groups keep them because they have not committed all of it.
Takes no lock and changes nothing.

Example:

    penstock segments data -t orders`
}

// segmentRow is a segment in JSON.
type segmentRow struct {
	Topic     string          `json:"topic"`
	Partition int             `json:"partition"`
	File      string          `json:"file"`
	State     string          `json:"state"`
	First     penstock.Offset `json:"first"`
	End       penstock.Offset `json:"end"`
	Bytes     int64           `json:"bytes"`
	Size      int64           `json:"size"`
	Created   *time.Time      `json:"created,omitempty"`
	Groups    []string        `json:"groups"`
	Error     string          `json:"error,omitempty"`
}

// Run lists.
func (c *segmentsCmd) Run(e *env) (err error) {
	defer func() { err = c.told(err) }()
	rows := []segmentRow{}
	damaged := false
	err = c.each(true, func(in *segfile.Inspection) error {
		infos, err := in.Segments(e.ctx)
		for _, s := range infos {
			row := segmentRow{
				Topic: in.About().Topic, Partition: s.Partition, File: s.File, State: s.State.String(), First: s.First, End: s.End,
				Bytes: int64(s.Bytes), Size: int64(s.Size), Groups: append([]string{}, s.Groups...),
			}
			if !s.Created.IsZero() {
				row.Created = &s.Created
			}
			if s.Err != nil {
				row.Error, damaged = s.Err.Error(), true
			}
			rows = append(rows, row)
		}
		return err
	})
	if err != nil && len(rows) == 0 {
		return err
	}
	if c.json() {
		err = errors.Join(err, encode(e.stdout, rows))
	} else {
		err = errors.Join(err, writeSegments(e, rows))
	}
	if err == nil && damaged {
		err = &failure{code: exitDamaged, what: "a segment is damaged", fix: "run: penstock fsck --deep " + c.Dir}
	}
	return err
}

func writeSegments(e *env, rows []segmentRow) error {
	t := tabwriter.NewWriter(e.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "topic\tpartition\tfile\tstate\tevents\tfirst\tend\tbytes\tfile size\tcreated\tkept for")
	for _, r := range rows {
		created, kept := "", strings.Join(r.Groups, ", ")
		if r.Created != nil {
			created = r.Created.Format(time.RFC3339)
		}
		if r.Error != "" {
			kept = r.Error
		}
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%d\t%d\t%d\t%s\t%s\t%s\t%s\n", r.Topic, r.Partition, r.File, r.State, r.End-r.First, r.First, r.End,
			size(penstock.Bytes(r.Bytes)), size(penstock.Bytes(r.Size)), created, kept)
	}
	return t.Flush()
}

type duCmd struct{ logDir }

// Help is shown by --help.
func (duCmd) Help() string {
	return `Adds up what the topics take on disk, by what it is for. Takes no lock and changes nothing.

Example:

    penstock du data -o json`
}

// usageRow is what a topic takes in JSON, in bytes.
type usageRow struct {
	Topic      string `json:"topic"`
	Segments   int64  `json:"segments"`
	Prepared   int64  `json:"prepared"`
	Positions  int64  `json:"positions"`
	Quarantine int64  `json:"quarantine"`
	RetryLogs  int64  `json:"retry_logs"`
	Other      int64  `json:"other"`
	Total      int64  `json:"total"`
	Files      int    `json:"files"`
}

// Run adds up.
func (c *duCmd) Run(e *env) (err error) {
	defer func() { err = c.told(err) }()
	rows := []usageRow{}
	err = c.each(true, func(in *segfile.Inspection) error {
		u, err := in.Usage()
		rows = append(rows, usageRow{
			Topic: u.Topic, Segments: int64(u.Segments), Prepared: int64(u.Prepared), Positions: int64(u.Positions),
			Quarantine: int64(u.Quarantine), RetryLogs: int64(u.RetryLogs), Other: int64(u.Other), Total: int64(u.Total()), Files: u.Files,
		})
		return err
	})
	if err != nil && len(rows) == 0 {
		return err
	}
	if c.json() {
		return errors.Join(err, encode(e.stdout, rows))
	}
	t := tabwriter.NewWriter(e.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "segments\tprepared\tpositions\tquarantine\tretry logs\tother\ttotal\tfiles\t  topic")
	for _, r := range rows {
		fmt.Fprint(t, strings.Join([]string{
			size(penstock.Bytes(r.Segments)), size(penstock.Bytes(r.Prepared)), size(penstock.Bytes(r.Positions)), size(penstock.Bytes(r.Quarantine)),
			size(penstock.Bytes(r.RetryLogs)), size(penstock.Bytes(r.Other)), size(penstock.Bytes(r.Total)), fmt.Sprint(r.Files), "  " + r.Topic,
		}, "\t"), "\n")
	}
	return errors.Join(err, t.Flush())
}
