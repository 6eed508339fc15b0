package stream

import (
	"os"
	"testing"

	"github.com/penstock/penstock/internal/leak"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(killedDir); dir != "" {
		liveUntilKilled(dir, os.Getenv(killedLife))
		os.Exit(1)
	}
	leak.Main(m)
}
