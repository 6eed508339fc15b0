package demo

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/penstock/penstock/cmd/penstock/internal/wire"
)

// WriteSummary writes a result as a table for people.
func WriteSummary(w io.Writer, r Result) error {
	v := r.Verdict
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "\ngroup\tdelivered\tdistinct\tduplicates\tdead\tlost\tout of order\tmax lag\t\n")
	for _, name := range wire.Groups {
		g := v.Groups[name]
		fmt.Fprintf(t, "%s", name)
		for _, n := range []uint64{g.Delivered, g.Distinct, g.Duplicates, g.Dead, g.Lost, g.OrderViolations, g.MaxLag} {
			fmt.Fprintf(t, "\t%s", count(float64(n)))
		}
		fmt.Fprintf(t, "\t\n")
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if r.Foreign > 0 {
		fmt.Fprintf(w, "\nhandlers also took %s events of earlier runs or of other producers\n", count(float64(r.Foreign)))
	}
	_, err := fmt.Fprintf(w, "\nproduced %s events at %s/s, unknown %s, crashes %d, largest process %.0f MiB\n",
		count(float64(v.Produced)), count(v.EventsPerSec), count(float64(v.Unknown)), v.Crashes, v.RSSMaxMiB)
	return err
}
