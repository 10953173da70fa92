package shutdown

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
)

// startBus is a system bus of the test's own.
func startBus(t *testing.T) {
	t.Helper()
	if err := installDBus(t.Context()); err != nil {
		t.Skipf("no system bus, which this test needs to stand in for logind: %v", err)
	}
	daemon := exec.Command("dbus-daemon", "--session", "--nofork", "--print-address", "--address=unix:dir="+t.TempDir())
	daemon.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := daemon.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = daemon.Process.Kill(); _ = daemon.Wait() })
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", strings.TrimSpace(address))
}

// installDBus gets dbus-daemon if this machine has none and installing it needs no question.
func installDBus(ctx context.Context) error {
	if _, err := exec.LookPath("dbus-daemon"); err == nil {
		return nil
	}
	if os.Geteuid() != 0 {
		return errors.New("dbus-daemon is missing: install it, or run the test as root")
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return errors.New("dbus-daemon is missing: install it (there is no apt-get here)")
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	const get = "apt-get -q -y -o DPkg::Lock::Timeout=300"
	script := get + " --no-install-recommends install dbus || { " + get + " update && " + get + " --no-install-recommends install dbus; }"
	install := exec.CommandContext(ctx, "sh", "-c", script)
	install.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	if out, err := install.CombinedOutput(); err != nil {
		return fmt.Errorf("dbus-daemon is missing and cannot be installed: %w: %s", err, out)
	}
	_, err := exec.LookPath("dbus-daemon")
	return err
}

// login is a logind that allows five seconds at first, and reads its configuration when it is told.
type login struct {
	bus     *dbus.Conn
	confDir string
	allowed atomic.Uint64
	// lock is the end of the pipe that reports whether the lock is held.
	lock chan *os.File
}

func startLogin(t *testing.T) *login {
	t.Helper()
	bus, err := dbus.ConnectSystemBus()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { bus.Close() })
	l := &login{bus: bus, confDir: t.TempDir(), lock: make(chan *os.File, 4)}
	l.allowed.Store(5_000_000)
	for name, methods := range map[string]struct {
		path  dbus.ObjectPath
		iface string
	}{loginName: {loginPath, manager}, "org.freedesktop.systemd1": {"/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"}} {
		if err := bus.Export(l, methods.path, methods.iface); err != nil {
			t.Fatal(err)
		}
		if _, err := bus.RequestName(name, dbus.NameFlagDoNotQueue); err != nil {
			t.Fatal(err)
		}
	}
	if err := bus.Export(l, loginPath, "org.freedesktop.DBus.Properties"); err != nil {
		t.Fatal(err)
	}
	return l
}

func (l *login) Get(string, string) (dbus.Variant, *dbus.Error) {
	return dbus.MakeVariant(l.allowed.Load()), nil
}

func (l *login) KillUnit(unit, _ string, _ int32) *dbus.Error {
	text, _ := os.ReadFile(filepath.Join(l.confDir, "99-berth-agent.conf"))
	if unit == "systemd-logind.service" && strings.Contains(string(text), "InhibitDelayMaxSec=40\n") {
		l.allowed.Store(40_000_000)
	}
	return nil
}

func (l *login) Inhibit(what, _, _, mode string) (dbus.UnixFD, *dbus.Error) {
	if what != "shutdown" || mode != "delay" {
		return 0, dbus.MakeFailedError(errors.New(what + " " + mode))
	}
	ours, theirs, err := os.Pipe()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	l.lock <- ours
	return dbus.UnixFD(theirs.Fd()), nil
}

func (l *login) tell(t *testing.T, begins bool) {
	t.Helper()
	if err := l.bus.Emit(loginPath, manager+"."+prepare, begins); err != nil {
		t.Fatal(err)
	}
}

func TestLogindDelaysAShutdown(t *testing.T) {
	startBus(t)
	l := startLogin(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	held, err := Inhibit(ctx, Options{Who: "test", Why: "test", Delay: 40 * time.Second, ConfDir: l.confDir})
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if got := l.allowed.Load(); got != 40_000_000 {
		t.Errorf("logind allows %d µs, want the 40s that were asked for", got)
	}
	lock := <-l.lock
	for _, begins := range []bool{true, false} {
		l.tell(t, begins)
		if got, err := held.Next(ctx); err != nil || got != begins {
			t.Fatalf("told %t: %t, %v", begins, got, err)
		}
	}
	if held.lock < 0 {
		t.Fatal("the lock is not held")
	}
	held.Release()
	if held.lock >= 0 {
		t.Error("the lock is held after it was released")
	}
	lock.Close()
	if err := held.Hold(ctx); err != nil || held.lock < 0 {
		t.Errorf("held again: %d, %v", held.lock, err)
	}
	l.bus.Close()
}

func TestNoLogind(t *testing.T) {
	startBus(t)
	if _, err := Inhibit(t.Context(), Options{}); !errors.Is(err, ErrNone) {
		t.Errorf("a bus without logind: %v", err)
	}
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+filepath.Join(t.TempDir(), "none"))
	if _, err := Inhibit(t.Context(), Options{}); !errors.Is(err, ErrNone) {
		t.Errorf("no bus: %v", err)
	}
}

// TestDBusIsInstalledWhereItIsMissing, also where apt has no lists of packages yet.
func TestDBusIsInstalledWhereItIsMissing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root installs packages")
	}
	bin := t.TempDir()
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	apt := `#!/bin/sh
cd ` + bin + `
case "$*" in
*" update") : >lists ;;
*" install dbus") [ -e lists ] || exit 100; : >dbus-daemon; /bin/chmod +x dbus-daemon ;;
*) exit 1 ;;
esac
`
	if err := errors.Join(os.Symlink(shell, filepath.Join(bin, "sh")), os.WriteFile(filepath.Join(bin, "apt-get"), []byte(apt), 0o755)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin)
	if err := installDBus(t.Context()); err != nil {
		t.Error(err)
	}
	t.Setenv("PATH", t.TempDir())
	if err := installDBus(t.Context()); err == nil || !strings.Contains(err.Error(), "dbus-daemon is missing") {
		t.Errorf("without apt-get: %v", err)
	}
}
