package volumes

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

func noGroup() error { return nil }

// seen is what a container finds in a folder, through the links.
func seen(t interface{ Fatal(...any) }, dir string) map[string]string {
	found := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), "..") {
			continue
		}
		top, err := filepath.EvalSymlinks(filepath.Join(dir, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		err = filepath.WalkDir(top, func(path string, inner fs.DirEntry, err error) error {
			if err != nil || inner.IsDir() {
				return err
			}
			content, err := os.ReadFile(path)
			found[entry.Name()+strings.TrimPrefix(path, top)] = string(content)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}

// Whatever was written before, and wherever the agent was killed in the midst of it: the next write
// shows just its files.
func TestAnyHistoryOfWritesShowsTheLast(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir := t.TempDir()
		path := rapid.SampledFrom([]string{"a", "b", "c", "dir/a", "dir/b", "deep/er/a", "deep/b", ".hidden"})
		for range rapid.IntRange(1, 6).Draw(rt, "writes") {
			wanted := rapid.MapOf(path, rapid.SampledFrom([]string{"", "x", "y"})).Draw(rt, "files")
			files := map[string]file{}
			for name, content := range wanted {
				files[name] = file{data: []byte(content), mode: 0o644}
			}
			for _, left := range rapid.SliceOf(rapid.SampledFrom([]string{"link", "folder", "no data", "no visible"})).Draw(rt, "what a kill left") {
				leave(dir, left)
			}
			if err := writeAtomically(dir, files, noGroup); err != nil {
				rt.Fatal(err)
			}
			if got := seen(rt, dir); !maps.Equal(got, wanted) {
				rt.Fatalf("shows %v, want %v", got, wanted)
			}
			if err := writeAtomically(dir, files, noGroup); err != nil {
				rt.Fatal(err)
			}
			if hidden := hiddenNames(rt, dir); len(hidden) != 2 {
				rt.Fatalf("left behind: %v", hidden)
			}
		}
	})
}

func hiddenNames(t interface{ Fatal(...any) }, dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var hidden []string
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), "..") {
			hidden = append(hidden, entry.Name())
		}
	}
	return hidden
}

func leave(dir, what string) {
	switch what {
	case "link":
		_ = os.Symlink("..2001_01_01_00_00_00.1", filepath.Join(dir, dataNewLink))
	case "folder":
		_ = os.MkdirAll(filepath.Join(dir, "..2001_01_01_00_00_00.1", "half"), 0o755)
	case "no data":
		_ = os.Remove(filepath.Join(dir, dataLink))
	case "no visible":
		_ = os.Remove(filepath.Join(dir, "a"))
	}
}

func TestNothingIsWrittenIfNothingChanges(t *testing.T) {
	dir := t.TempDir()
	files := map[string]file{"a": {data: []byte("x"), mode: 0o600}}
	if err := writeAtomically(dir, files, noGroup); err != nil {
		t.Fatal(err)
	}
	before, err := os.Readlink(filepath.Join(dir, dataLink))
	if err != nil {
		t.Fatal(err)
	}
	if err := writeAtomically(dir, files, noGroup); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Readlink(filepath.Join(dir, dataLink)); err != nil || after != before {
		t.Errorf("..data leads to %s now, before to %s (%v)", after, before, err)
	}
}

func TestWhatCannotBeGivenToItsGroupIsNotShown(t *testing.T) {
	dir := t.TempDir()
	show := func(content string, own func() error) error {
		return writeAtomically(dir, map[string]file{"a": {data: []byte(content), mode: 0o644}}, own)
	}
	if err := show("old", noGroup); err != nil {
		t.Fatal(err)
	}
	if err := show("new", func() error { return errors.New("no") }); err == nil {
		t.Error("no error")
	}
	if got := seen(t, dir); got["a"] != "old" {
		t.Errorf("shows %v", got)
	}
}

// Two files always change together. A reader that stays in one version, as a program does that
// opens the folder ..data leads to, never finds them different.
func TestReaderNeverSeesHalfAnUpdate(t *testing.T) {
	dir := t.TempDir()
	version := func(n int) map[string]file {
		content := []byte(strings.Repeat(strconv.Itoa(n%10), 4096))
		return map[string]file{"a": {data: content, mode: 0o644}, "sub/b": {data: content, mode: 0o644}}
	}
	if err := writeAtomically(dir, version(0), noGroup); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var whole atomic.Int64
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if _, err := os.Readlink(filepath.Join(dir, dataLink)); err != nil {
					t.Errorf("there is a moment without any version: %v", err)
					return
				}
				current, err := os.OpenRoot(filepath.Join(dir, dataLink))
				if err != nil {
					continue // two versions on while it was on its way; a program tries again
				}
				a, errA := current.ReadFile("a")
				b, errB := current.ReadFile("sub/b")
				current.Close()
				if errA != nil || errB != nil {
					continue // likewise
				}
				whole.Add(1)
				if !slices.Equal(a, b) {
					t.Errorf("a begins with %.1s, b with %.1s", a, b)
				}
			}
		})
	}
	for n := range 300 {
		if err := writeAtomically(dir, version(n), noGroup); err != nil {
			t.Error(err)
		}
	}
	for whole.Load() == 0 { // a machine so busy that no reader got its turn
		runtime.Gosched()
	}
	close(done)
	readers.Wait()
}

// FuzzFilePath holds what is let through against the filesystem: nothing leads out of the folder,
// or to the names of the swap.
func FuzzFilePath(f *testing.F) {
	for _, seed := range []string{"a", "a/b", "..", "../a", "/a", "a/../b", "..data", "..data/x", "a/..data", "", ".", "./a", "./..data", "a//b", "a/"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, path string) {
		if validFilePath(path) != nil {
			return
		}
		clean := filepath.Clean(path)
		if !filepath.IsLocal(clean) || strings.HasPrefix(clean, "..") {
			t.Errorf("%q is let through, and leads to %q", path, clean)
		}
	})
}
