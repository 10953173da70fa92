package logfile

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// oneContainer is a runtime with a single container that runs.
type oneContainer struct {
	*program
	refuses error // to open the log again
	reopens int
}

func (o *oneContainer) ListContainers(_ context.Context, filter *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	if filter.GetState().GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return nil, errors.New("only those that run write")
	}
	return []*runtimeapi.Container{{Id: "one"}}, nil
}

func (o *oneContainer) ContainerStatus(context.Context, string, bool) (*runtimeapi.ContainerStatusResponse, error) {
	return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{LogPath: o.path}}, nil
}

func (o *oneContainer) ReopenContainerLog(context.Context, string) error {
	if o.refuses == nil {
		o.reopen()
		o.reopens++
	}
	return o.refuses
}

func rotator(t *testing.T) (*Rotator, *oneContainer) {
	root := t.TempDir()
	folder := filepath.Join(root, "default_web_1", "nginx")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	c := &oneContainer{program: newProgram(t, filepath.Join(folder, "0.log"))}
	now := time.Date(2026, 11, 20, 14, 0, 0, 0, time.UTC)
	return &Rotator{Runtime: c, Dir: root, MaxSize: 1000, MaxFiles: 4, now: func() time.Time {
		now = now.Add(time.Minute)
		return now
	}}, c
}

func names(t *testing.T, folder string) (found []string) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		found = append(found, entry.Name())
	}
	return found
}

func TestLogsAreRotatedWhenTheyAreLarge(t *testing.T) {
	r, c := rotator(t)
	folder := filepath.Dir(c.path)
	for _, step := range []struct {
		lines int
		want  []string
	}{
		{1, []string{"0.log"}},
		{50, []string{"0.log", "0.log.20261120-140100"}},
		{1, []string{"0.log", "0.log.20261120-140100"}},
		{50, []string{"0.log", "0.log.20261120-140100.gz", "0.log.20261120-140200"}},
		{50, []string{"0.log", "0.log.20261120-140100.gz", "0.log.20261120-140200.gz", "0.log.20261120-140300"}},
		{50, []string{"0.log", "0.log.20261120-140200.gz", "0.log.20261120-140300.gz", "0.log.20261120-140400"}},
	} {
		c.write(step.lines)
		if err := r.Rotate(t.Context()); err != nil {
			t.Fatal(err)
		}
		if found := names(t, folder); !slices.Equal(found, step.want) {
			t.Fatalf("files %v, wanted %v", found, step.want)
		}
	}
	// Nothing of what is kept was lost.
	c.write(1)
	var kept strings.Builder
	for _, name := range []string{"0.log.20261120-140200.gz", "0.log.20261120-140300.gz", "0.log.20261120-140400", "0.log"} {
		kept.WriteString(content(t, filepath.Join(folder, name)))
	}
	if !strings.HasSuffix(kept.String(), " line 202\n") || strings.Count(kept.String(), "\n") != 203-51 {
		t.Errorf("kept is not the last part of what was written: %d lines", strings.Count(kept.String(), "\n"))
	}
	if err := Remove(r.Dir, c.path); err != nil {
		t.Fatal(err)
	}
	if found := names(t, folder); len(found) > 0 {
		t.Errorf("not removed: %v", found)
	}
}

func content(t *testing.T, path string) string {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var from io.Reader = file
	if strings.HasSuffix(path, compressed) {
		if from, err = gzip.NewReader(file); err != nil {
			t.Fatal(err)
		}
	}
	all, err := io.ReadAll(from)
	if err != nil {
		t.Fatal(err)
	}
	return string(all)
}

func TestALogThatIsNotReopenedKeepsItsName(t *testing.T) {
	r, c := rotator(t)
	c.write(50)
	c.refuses = errors.New("busy")
	if err := r.Rotate(t.Context()); !errors.Is(err, c.refuses) {
		t.Fatalf("error %v", err)
	}
	if found := names(t, filepath.Dir(c.path)); !slices.Equal(found, []string{"0.log"}) {
		t.Fatalf("files %v", found)
	}
	c.refuses = nil
	if err := r.Rotate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if found := names(t, filepath.Dir(c.path)); len(found) != 2 {
		t.Errorf("files %v", found)
	}
}

// Killed between renaming and reopening: the container writes to a file that nobody looks at.
func TestALogThatIsGoneIsReopened(t *testing.T) {
	r, c := rotator(t)
	c.rename(".20261120-130000")
	if err := r.Rotate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c.reopens != 1 || !slices.Contains(names(t, filepath.Dir(c.path)), "0.log") {
		t.Errorf("reopened %d times", c.reopens)
	}
}

func TestLeftoversOfAnInterruptedRotationAreRemoved(t *testing.T) {
	r, c := rotator(t)
	c.write(50)
	for _, leftover := range []string{".20261120-130000", ".20261120-130000.gz", ".20261120-120000.tmp"} {
		if err := os.WriteFile(c.path+leftover, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Rotate(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []string{"0.log", "0.log.20261120-130000.gz", "0.log.20261120-140100"}
	if found := names(t, filepath.Dir(c.path)); !slices.Equal(found, want) {
		t.Errorf("files %v, wanted %v", found, want)
	}
}

func TestNothingBehindLinksIsRotated(t *testing.T) {
	r, c := rotator(t)
	outside := filepath.Join(t.TempDir(), "0.log")
	if err := os.WriteFile(outside, make([]byte, 5000), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(c.path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, c.path); err != nil {
		t.Fatal(err)
	}
	if err := r.Rotate(t.Context()); !errors.Is(err, ErrRefused) {
		t.Errorf("a linked log: %v", err)
	}
	folder := filepath.Dir(c.path)
	if err := os.Rename(folder, folder+".real"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Dir(outside), folder); err != nil {
		t.Fatal(err)
	}
	if err := r.Rotate(t.Context()); !errors.Is(err, ErrRefused) {
		t.Errorf("a linked folder: %v", err)
	}
	if err := Remove(r.Dir, c.path); !errors.Is(err, ErrRefused) {
		t.Errorf("to remove behind a linked folder: %v", err)
	}
	if found := names(t, filepath.Dir(outside)); !slices.Equal(found, []string{"0.log"}) {
		t.Errorf("files elsewhere: %v", found)
	}
	// A container of another kubelet on the same runtime.
	c.path = outside
	if err := r.Rotate(t.Context()); err != nil {
		t.Errorf("somebody else's log: %v", err)
	}
}
