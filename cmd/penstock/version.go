package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/penstock/penstock"
)

type versionCmd struct {
	Output string `short:"o" enum:"text,json" default:"text" help:"Form of the answer: text or json."`
	JSON   bool   `name:"json" help:"The same as -o json."`
}

// Help is shown by --help.
func (versionCmd) Help() string {
	return "Example:\n\n    penstock version -o json"
}

// version is what the command answers.
type version struct {
	Version     string `json:"version"`
	Commit      string `json:"commit,omitempty"`
	CommitTime  string `json:"commit_time,omitempty"`
	Modified    bool   `json:"modified,omitempty"` // the working tree had changes
	Go          string `json:"go"`
	OS          string `json:"os"`
	Arch        string `json:"arch"`
	HashVersion int    `json:"hash_version"` // of the hash that spreads keys over partitions
}

// Run answers.
func (c *versionCmd) Run(e *env) error {
	info, _ := debug.ReadBuildInfo()
	v := versionOf(info)
	if c.JSON || c.Output == "json" {
		return json.NewEncoder(e.stdout).Encode(v)
	}
	text := fmt.Sprintf("penstock %s %s %s/%s", v.Version, v.Go, v.OS, v.Arch)
	if v.Commit != "" {
		text += " commit " + v.Commit
		if v.Modified {
			text += " with changes"
		}
	}
	_, err := fmt.Fprintln(e.stdout, text)
	return err
}

// versionOf reads what the Go tool wrote into the binary; info may be nil.
func versionOf(info *debug.BuildInfo) version {
	v := version{Version: "unknown", Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH, HashVersion: penstock.HashVersion}
	if info == nil {
		return v
	}
	if info.Main.Version != "" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Commit = s.Value
		case "vcs.time":
			v.CommitTime = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}
