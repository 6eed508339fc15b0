package queue

import (
	"fmt"
	"strconv"
	"time"

	"github.com/penstock/penstock/internal/debugpage"
)

// Bounds of the page; the JSON has all.
const (
	maxRowsOfGroups     = 500
	maxTopicsOnPage     = 200
	maxPartitionsOfPage = 1024
	worstPartitions     = 8
)

// groupRow is a row of the first table.
type groupRow struct {
	topic int // index
	group *GroupStats
	id    string // of its section
}

// Body writes the page below its verdict.
func (v *debugView) Body(m debugpage.Markup) {
	rows := v.rows()
	v.writeRows(m, rows)
	for i := range v.topics {
		if i == maxTopicsOnPage {
			m.Element("p", "dim", debugpage.Grouped(uint64(len(v.topics)-i))+" more topics are open; the JSON has them, and ?topic=NAME shows one.")
			break
		}
		v.writeTopic(m, i, rows)
	}
}

// rows returns all groups of all topics, who needs somebody first.
func (v *debugView) rows() []groupRow {
	var rows []groupRow
	for i := range v.topics {
		for j, g := range v.topics[i].bySeverity() {
			rows = append(rows, groupRow{i, g, fmt.Sprintf("t%dg%d", i, j)})
		}
	}
	sortRows(rows)
	return rows
}

func (v *debugView) writeRows(m debugpage.Markup, rows []groupRow) {
	if len(rows) == 0 {
		if len(v.topics) > 0 {
			m.Element("p", "dim", "No topic has a group.")
		}
		return
	}
	m.Table("Groups, the most urgent first", "state", "group", "topic", "why", "#lag", "#oldest", "#in", "#out", "#drains in", "#in hand", "#retrying", "#parked", "#dead")
	for i, r := range rows {
		if i == maxRowsOfGroups {
			m.Raw("<tr>")
			m.Raw(`<td colspan="13">`)
			m.Text(debugpage.Grouped(uint64(len(rows)-i)) + " more groups; the JSON has them.")
			m.Raw("</td></tr>\n")
			break
		}
		g := r.group
		m.Row(g.Severity(), g.State.String())
		m.Raw(`<td class="name">`)
		if r.topic < maxTopicsOnPage {
			m.Raw(`<a href="#`, r.id, `">`)
			m.Text(g.Name)
			m.Raw("</a>")
		} else {
			m.Text(g.Name)
		}
		m.Raw("</td>")
		m.Element("td", "name", v.topicName(r.topic))
		m.Element("td", "why", g.Why)
		m.Numbers(debugpage.Grouped(g.Lag), lagText(g), rateText(g.Rates, g.In), rateText(g.Rates, g.Out), drainText(g), count0(g.Run.InHand), count0(g.Run.Waiting),
			count0(g.Parked.Keys), debugpage.Grouped(g.Run.DeadLettered))
		m.Raw("</tr>\n")
	}
	m.EndTable()
}

func (v *debugView) topicName(i int) string {
	if n := v.copies[i]; n > 0 {
		return v.topics[i].Name + " (" + strconv.Itoa(n) + ")"
	}
	return v.topics[i].Name
}

func count0(n int) string { return debugpage.Grouped(uint64(max(0, n))) }

func lagText(g *GroupStats) string {
	if g.Lag == 0 || g.LagTime == 0 {
		return "–"
	}
	return debugpage.Span(g.LagTime)
}

func rateText(r Rates, value float64) string {
	if r.Over == 0 {
		return "?"
	}
	return debugpage.Rate(value)
}

func drainText(g *GroupStats) string {
	switch {
	case g.Lag == 0:
		return "–"
	case g.Over == 0:
		return "?"
	case g.Drain == NeverDrains:
		return "never"
	}
	return debugpage.Span(g.Drain)
}

func ago(now, t time.Time) string {
	return debugpage.Span(max(0, now.Sub(t))) + " ago"
}
