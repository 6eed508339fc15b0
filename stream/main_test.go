package stream

import (
	"fmt"
	"os"
	"testing"

	"github.com/penstock/penstock/internal/leak"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(killedDir); dir != "" {
		liveUntilKilled(dir, os.Getenv(killedLife))
		os.Exit(1)
	}
	if dir := os.Getenv(poisonsDir); dir != "" {
		if err := twicePoisoned(dir, os.Getenv(killedLife) == "0"); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	if dir := os.Getenv(poisonDir); dir != "" {
		if err := poisoned(dir, os.Getenv(killedLife) == "0"); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		return
	}
	leak.Main(m)
}
