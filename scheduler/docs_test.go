package scheduler

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

var update = flag.Bool("update", false, "write the flags in docs/scheduler.md anew")

// shared are flags of every Kubernetes component; the page names them in a sentence.
var shared = []string{"v", "vmodule", "logging-format", "log-", "show-hidden", "disabled-metrics", "allow-metric-labels"}

func ofEveryComponent(name string) bool {
	for _, prefix := range shared {
		if name == prefix || strings.HasPrefix(name, prefix) && prefix != "v" {
			return true
		}
	}
	return false
}

// tables are the flags of the page: those that do something, and those that do not.
func tables() (flags, ignored string) {
	var with, without strings.Builder
	fmt.Fprintf(&with, "| flag | default | |\n| --- | --- | --- |\n")
	fmt.Fprintf(&without, "| flag | why |\n| --- | --- |\n")
	NewCommand().Flags().VisitAll(func(f *pflag.Flag) {
		switch {
		case f.Hidden && strings.HasPrefix(f.Usage, "has no effect: "):
			fmt.Fprintf(&without, "| `--%s` | %s |\n", f.Name, strings.TrimPrefix(f.Usage, "has no effect: "))
		case !f.Hidden && !ofEveryComponent(f.Name):
			value := ""
			if f.DefValue != "" && f.DefValue != "[]" {
				value = "`" + strings.Trim(f.DefValue, "[]") + "`"
			}
			fmt.Fprintf(&with, "| `--%s` | %s | %s |\n", f.Name, value, strings.ReplaceAll(f.Usage, "|", `\|`))
		}
	})
	return with.String(), without.String()
}

func between(t *testing.T, page, name, content string) string {
	t.Helper()
	before, rest, found := strings.Cut(page, "<!-- "+name+" -->\n")
	_, after, foundEnd := strings.Cut(rest, "<!-- end of "+name+" -->\n")
	if !found || !foundEnd {
		t.Fatalf("the page has no place for %s", name)
	}
	return before + "<!-- " + name + " -->\n" + content + "<!-- end of " + name + " -->\n" + after
}

func TestFlagsOnThePageAreCurrent(t *testing.T) {
	file := filepath.Join("..", "docs", "scheduler.md")
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	flags, ignored := tables()
	want := between(t, between(t, string(page), "flags", flags), "ignored", ignored)
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(page) {
		t.Error("docs/scheduler.md is out of date: go test ./scheduler -update")
	}
}
