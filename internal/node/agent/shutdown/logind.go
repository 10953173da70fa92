package shutdown

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

const (
	loginName = "org.freedesktop.login1"
	loginPath = dbus.ObjectPath("/org/freedesktop/login1")
	manager   = loginName + ".Manager"
	prepare   = "PrepareForShutdown"
)

// ErrNone is the error on machines without systemd-logind.
var ErrNone = errors.New("no systemd-logind on the system's bus")

// Options of a Logind.
type Options struct {
	// Who and Why are shown by systemd-inhibit --list.
	Who, Why string
	// Delay that is needed.
	Delay time.Duration
	// ConfDir is where logind is configured to allow the delay; empty: /etc/systemd/logind.conf.d.
	ConfDir string
}

// Logind delays a shutdown of the machine as long as it holds its lock.
type Logind struct {
	Options
	bus     *dbus.Conn
	signals chan *dbus.Signal
	lock    int // file descriptor; -1: none is held
}

// Inhibit connects to the system's bus and takes the lock.
func Inhibit(ctx context.Context, options Options) (*Logind, error) {
	bus, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNone, err)
	}
	l := &Logind{Options: options, bus: bus, signals: make(chan *dbus.Signal, 8), lock: -1}
	if err := l.begin(ctx); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

func (l *Logind) begin(ctx context.Context) error {
	allowed, err := l.allowed(ctx)
	var refused dbus.Error
	if errors.As(err, &refused) && refused.Name == "org.freedesktop.DBus.Error.ServiceUnknown" {
		return ErrNone
	}
	if err == nil && allowed < l.Delay {
		err = l.allow(ctx)
	}
	if err != nil {
		return err
	}
	// Before taking the lock, so that a shutdown in between is noticed.
	err = l.bus.AddMatchSignalContext(ctx, dbus.WithMatchInterface(manager), dbus.WithMatchMember(prepare), dbus.WithMatchObjectPath(loginPath))
	if err != nil {
		return fmt.Errorf("listen for shutdowns: %w", err)
	}
	l.bus.Signal(l.signals)
	return l.Hold(ctx)
}

// allowed is the longest delay that logind grants.
func (l *Logind) allowed(ctx context.Context) (time.Duration, error) {
	var value dbus.Variant
	err := l.bus.Object(loginName, loginPath).CallWithContext(ctx, "org.freedesktop.DBus.Properties.Get", 0, manager, "InhibitDelayMaxUSec").Store(&value)
	if err != nil {
		return 0, fmt.Errorf("ask logind for its longest delay: %w", err)
	}
	microseconds, ok := value.Value().(uint64)
	if !ok {
		return 0, fmt.Errorf("logind's InhibitDelayMaxUSec is %v, not a number", value)
	}
	return time.Duration(min(microseconds, uint64(time.Hour/time.Microsecond))) * time.Microsecond, nil
}

// allow allows the delay in logind's configuration, as the kubelet does, and has it reloaded.
func (l *Logind) allow(ctx context.Context) error {
	dir := l.ConfDir
	if dir == "" {
		dir = "/etc/systemd/logind.conf.d"
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("allow a delay of %s: %w", l.Delay, err)
	}
	text := fmt.Sprintf("# Written by berth agent, for its shutdown grace periods.\n[Login]\nInhibitDelayMaxSec=%.0f\n", l.Delay.Seconds())
	if err := os.WriteFile(filepath.Join(dir, "99-berth-agent.conf"), []byte(text), 0o644); err != nil {
		return fmt.Errorf("allow a delay of %s: %w", l.Delay, err)
	}
	systemd := l.bus.Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1")
	err := systemd.CallWithContext(ctx, "org.freedesktop.systemd1.Manager.KillUnit", 0, "systemd-logind.service", "all", int32(unix.SIGHUP)).Err
	if err != nil {
		return fmt.Errorf("have logind read its configuration: %w", err)
	}
	// logind reads it some time later.
	for wait := 100 * time.Millisecond; wait < 4*time.Second; wait *= 2 {
		allowed, err := l.allowed(ctx)
		if err != nil || allowed >= l.Delay {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
	return fmt.Errorf("logind does not allow a delay of %s: set InhibitDelayMaxSec in logind.conf", l.Delay)
}

// Hold takes the lock again after Release.
func (l *Logind) Hold(ctx context.Context) error {
	var lock dbus.UnixFD
	err := l.bus.Object(loginName, loginPath).CallWithContext(ctx, manager+".Inhibit", 0, "shutdown", l.Who, l.Why, "delay").Store(&lock)
	if err != nil {
		return fmt.Errorf("take logind's lock: %w", err)
	}
	l.Release()
	l.lock = int(lock)
	return nil
}

// Release lets the shutdown continue.
func (l *Logind) Release() {
	if l.lock >= 0 {
		unix.Close(l.lock)
		l.lock = -1
	}
}

// Next waits until the machine is about to shut down (true), or a shutdown was cancelled (false).
func (l *Logind) Next(ctx context.Context) (bool, error) {
	for {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case signal, ok := <-l.signals:
			if !ok {
				return false, errors.New("the connection to the system's bus is lost")
			}
			if signal.Name != manager+"."+prepare || len(signal.Body) != 1 {
				continue
			}
			if begins, ok := signal.Body[0].(bool); ok {
				return begins, nil
			}
		}
	}
}

// Close releases the lock and the bus.
func (l *Logind) Close() {
	l.Release()
	l.bus.Close()
}
