package penstock

import "fmt"

// Severity says who should look at what a debug page shows.
type Severity uint8

const (
	Fine    Severity = iota // nobody
	Notice                  // whoever wonders why nothing moves
	Warning                 // somebody, today
	Alarm                   // somebody, now
)

// String returns the severity as it stands in JSON: warning.
func (s Severity) String() string {
	switch s {
	case Fine:
		return "fine"
	case Notice:
		return "notice"
	case Warning:
		return "warning"
	case Alarm:
		return "alarm"
	}
	return fmt.Sprintf("severity(%d)", uint8(s))
}
