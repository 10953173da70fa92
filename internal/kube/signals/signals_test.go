package signals

import (
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"
)

// TestIgnoredSignalStaysIgnored: nohup starts a process that ignores SIGHUP, which is to outlive
// the terminal.
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

// TestInterruptEndsWhatAScriptHasStartedInTheBackground: its shell has SIGINT ignored there.
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
