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
// as by nohup, so that the process outlives the terminal.
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

// TestInterruptEndsWhatAScriptHasStartedInTheBackground verifies that SIGINT ends a background
// process, although its shell makes it ignore the signal.
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

// endless names the environment variable that makes the test binary a program that does not end on
// signals.
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

// TestSecondSignalEndsTheProcess verifies that the process ends, whatever it waits for. A second
// signal sent immediately after the first may arrive before the process has reset its handlers, and
// is repeated.
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
				_ = program.Process.Signal(syscall.SIGTERM) // it may have ended meanwhile
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
