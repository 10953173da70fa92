package logfile

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A pod that may write to the folder of logs must not be able to show any file of the machine.
func TestNothingButLogsIsOpened(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(outside, []byte("2026-11-20T14:00:02Z stdout F secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	pod := filepath.Join(root, "default_web_1", "nginx")
	if err := os.MkdirAll(pod, 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(name string) string {
		path := filepath.Join(pod, name)
		if err := os.WriteFile(path, []byte("2026-11-20T14:00:02Z stdout F fine\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	link := func(to, from string) string {
		if err := os.Symlink(to, from); err != nil {
			t.Fatal(err)
		}
		return from
	}
	fine := write("0.log")
	pipe := filepath.Join(pod, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	linked := link(pod, filepath.Join(root, "linked"))
	up, err := filepath.Rel(root, outside)
	if err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"a link to a file elsewhere":     link(outside, filepath.Join(pod, "1.log")),
		"a link to a log":                link(fine, filepath.Join(pod, "2.log")),
		"a link to nothing":              link("gone", filepath.Join(pod, "3.log")),
		"a log behind a linked folder":   filepath.Join(linked, "0.log"),
		"upwards":                        filepath.Join(root, "..", filepath.Base(filepath.Dir(outside)), "secret"),
		"upwards by a relative path":     root + "/" + up,
		"elsewhere":                      outside,
		"the root":                       root,
		"a folder":                       pod,
		"a pipe":                         pipe,
		"behind a file":                  filepath.Join(fine, "x"),
		"an empty name":                  "",
		"a relative name":                "default_web_1/nginx/0.log",
		"a name with a zero byte":        fine + "\x00",
		"a root's sibling, same letters": root + "x/0.log",
	} {
		var out sink
		if err := Read(t.Context(), root, path, Options{}, &out); !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
		if out.shown.Len() > 0 {
			t.Errorf("%s: shown %q", name, out.shown.String())
		}
	}
	var out sink
	if err := Read(t.Context(), root, fine, Options{}, &out); err != nil || out.seen() != "fine\n" {
		t.Errorf("the log itself: %q, %v", out.seen(), err)
	}
	if err := Read(t.Context(), root, filepath.Join(pod, "none.log"), Options{}, &out); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no log: %v", err)
	}
}
