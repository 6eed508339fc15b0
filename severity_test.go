package penstock_test

import (
	"testing"

	"github.com/penstock/penstock"
)

func TestSeveritiesHaveNames(t *testing.T) {
	for s, want := range map[penstock.Severity]string{
		penstock.Fine: "fine", penstock.Notice: "notice", penstock.Warning: "warning", penstock.Alarm: "alarm", 9: "severity(9)",
	} {
		if s.String() != want {
			t.Errorf("%s, want %s", s, want)
		}
	}
}
