// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package signals

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"time"
)

// TestIgnoredSignalStaysIgnored verifies that SIGHUP stays ignored if it was ignored at the start,
// for example because of nohup, so that the process outlives the terminal.
func TestIgnoredSignalStaysIgnored(t *testing.T) {
	signal.Ignore(syscall.SIGHUP)
	defer signal.Reset(syscall.SIGHUP)
	ctx, stop := Until(t.Context())
	defer stop()
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGTERM} {
		if err := self.Signal(s); err != nil {
			t.Fatal(err)
		}
		select {
		case <-ctx.Done():
			if s == syscall.SIGHUP {
				t.Fatal("ended by a signal that was ignored")
			}
		case <-time.After(500 * time.Millisecond):
			if s == syscall.SIGTERM {
				t.Error("not ended by SIGTERM")
			}
		}
	}
}

// TestInterruptEndsWhatAScriptHasStartedInTheBackground verifies that SIGINT ends a process that
// was started with SIGINT ignored, like the background processes of a script.
func TestInterruptEndsWhatAScriptHasStartedInTheBackground(t *testing.T) {
	signal.Ignore(os.Interrupt)
	defer signal.Reset(os.Interrupt)
	ctx, stop := Until(t.Context())
	defer stop()
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if err := self.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ctx.Done():
	case <-time.After(5 * time.Second):
		t.Error("not ended by SIGINT")
	}
}

// endless is the environment variable that makes the test binary a program that does not exit after
// the first signal.
const endless = "BERTH_TEST_ENDLESS"

func TestMain(m *testing.M) {
	if os.Getenv(endless) == "" {
		os.Exit(m.Run())
	}
	ctx, stop := Until(context.Background())
	defer stop()
	fmt.Println("begun")
	<-ctx.Done()
	fmt.Println("asked to end")
	select {}
}

// TestSecondSignalEndsTheProcess verifies that a second signal ends the process, even if it hangs.
// The second signal may arrive before the process has reset its handlers, so the test repeats it.
func TestSecondSignalEndsTheProcess(t *testing.T) {
	program := exec.Command(os.Args[0])
	program.Env = append(os.Environ(), endless+"=1")
	said, err := program.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	defer time.AfterFunc(time.Minute, func() { _ = program.Process.Kill() }).Stop()
	lines := bufio.NewScanner(said)
	for _, want := range []string{"begun", "asked to end"} {
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("it says %q, want %q", lines.Text(), want)
		}
		if err := program.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	again, over := time.NewTicker(100*time.Millisecond), make(chan struct{})
	defer again.Stop()
	go func() {
		for {
			select {
			case <-again.C:
				_ = program.Process.Signal(syscall.SIGTERM) // the process may have ended already
			case <-over:
				return
			}
		}
	}()
	err = program.Wait()
	close(over)
	var ended *exec.ExitError
	if !errors.As(err, &ended) || ended.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
		t.Errorf("it ended with %v, want SIGTERM", err)
	}
}
