// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package reload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// story is a file, with the applied contents and the reports of its follower.
type story struct {
	mu      sync.Mutex
	content []byte
	missing bool
	applied []string
	told    []string
}

// follow runs a follower of the story's file until the test ends it. Content with "bad" in it is
// refused.
func follow(t *testing.T, tell func(s *story)) *story {
	s := &story{content: []byte("first")}
	synctest.Test(t, func(t *testing.T) {
		f := &Follower{
			Read: func() ([]byte, error) {
				s.mu.Lock()
				defer s.mu.Unlock()
				if s.missing {
					return nil, errors.New("open x: no such file or directory")
				}
				return bytes.Clone(s.content), nil
			},
			Apply: func(data []byte) error {
				if bytes.Contains(data, []byte("bad")) {
					return fmt.Errorf("%s is refused", data)
				}
				s.applied = append(s.applied, string(data))
				return nil
			},
			OnChange: func(err error) { s.told = append(s.told, fmt.Sprint(err)) },
		}
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); f.Run(ctx, []byte("first")) }()
		tell(s)
		stop()
		<-done
	})
	return s
}

func (s *story) write(content string, stays time.Duration) {
	s.mu.Lock()
	s.content, s.missing = []byte(content), false
	s.mu.Unlock()
	time.Sleep(stays)
}

func (s *story) remove(stays time.Duration) {
	s.mu.Lock()
	s.missing = true
	s.mu.Unlock()
	time.Sleep(stays)
}

func (s *story) expect(t *testing.T, applied, lines []string) {
	t.Helper()
	if !slices.Equal(s.applied, applied) {
		t.Errorf("applied %q, want %q", s.applied, applied)
	}
	if !slices.Equal(s.told, lines) {
		t.Errorf("told %q, want %q", s.told, lines)
	}
}

const good = "<nil>"

func TestGoodChangeIsAppliedWithinTwoSeconds(t *testing.T) {
	follow(t, func(s *story) { s.write("second", 1500*time.Millisecond) }).expect(t, []string{"second"}, []string{good})
}

func TestUnchangedFileIsLeftAlone(t *testing.T) {
	follow(t, func(s *story) { s.write("first", time.Hour) }).expect(t, nil, nil)
}

func TestBadChangeIsRefusedOnceAndTheNextGoodOneCounts(t *testing.T) {
	follow(t, func(s *story) {
		s.write("bad", time.Minute)
		s.write("third", time.Minute)
	}).expect(t, []string{"third"}, []string{"bad is refused", good})
}

func TestReturnToWhatIsInUseIsToldAndChangesNothing(t *testing.T) {
	follow(t, func(s *story) {
		s.write("bad", time.Minute)
		s.write("first", time.Minute)
		s.write("second", time.Minute)
		s.write("first", time.Minute)
	}).expect(t, []string{"second", "first"}, []string{"bad is refused", good, good, good})
}

func TestFileThatIsBeingWrittenIsNotTakenForAFinishedOne(t *testing.T) {
	follow(t, func(s *story) {
		s.write("", 700*time.Millisecond)
		s.write("half bad", 700*time.Millisecond)
		s.write("half bad no more: go", 700*time.Millisecond)
		s.write("whole", time.Minute)
	}).expect(t, []string{"whole"}, []string{good})
}

func TestRapidChangesEndWithTheLast(t *testing.T) {
	follow(t, func(s *story) {
		for i := range 20 {
			s.write(fmt.Sprint("version ", i), 300*time.Millisecond)
		}
		s.write("last", time.Minute)
	}).expect(t, []string{"last"}, []string{good})
}

func TestFileThatNeverStandsStillCountsAtLatestAfterTenSeconds(t *testing.T) {
	s := follow(t, func(s *story) {
		for i := range 100 {
			s.write(fmt.Sprint("version ", i), 300*time.Millisecond)
		}
	})
	if n := len(s.applied); n < 2 || n > 3 {
		t.Errorf("applied %d times in 30 s", n)
	}
}

func TestRemovedFileIsToldOnceAndWhatWasInUseStays(t *testing.T) {
	follow(t, func(s *story) {
		s.remove(time.Minute)
		s.write("first", time.Minute)
		s.remove(500 * time.Millisecond) // an editor that removes the file and writes it again
		s.write("second", time.Minute)
	}).expect(t, []string{"second"}, []string{"open x: no such file or directory", good, good})
}

// TestConfigMapVolume verifies that a change by the kubelet is detected: the name stays a link
// through ..data, and ..data is swapped.
func TestConfigMapVolume(t *testing.T) {
	dir := t.TempDir()
	publish := func(version, content string) {
		t.Helper()
		for _, step := range []error{
			os.Mkdir(filepath.Join(dir, version), 0o755),
			os.WriteFile(filepath.Join(dir, version, "scheduler.yaml"), []byte(content), 0o644),
			os.Symlink(version, filepath.Join(dir, "..data_tmp")),
			os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")),
		} {
			if step != nil {
				t.Fatal(step)
			}
		}
	}
	publish("..1", "first")
	file := filepath.Join(dir, "scheduler.yaml")
	if err := os.Symlink(filepath.Join("..data", "scheduler.yaml"), file); err != nil {
		t.Fatal(err)
	}
	applied := make(chan string, 10)
	f := &Follower{
		Read:     func() ([]byte, error) { return os.ReadFile(file) },
		Apply:    func(data []byte) error { applied <- string(data); return nil },
		OnChange: func(error) {},
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go f.Run(ctx, []byte("first"))
	publish("..2", "second")
	select {
	case got := <-applied:
		if got != "second" {
			t.Errorf("applied %q", got)
		}
	case <-time.After(10 * time.Second):
		t.Error("the swap was not seen")
	}
}
