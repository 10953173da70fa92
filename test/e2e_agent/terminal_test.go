package e2eagent

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// terminal is that of a process, from the person's side.
type terminal struct {
	file *os.File
	out  printed
	from int // what was expected before is not looked at again
}

// startInTerminal starts a process that has a terminal of this size.
func startInTerminal(t *testing.T, cmd *exec.Cmd, columns, rows int) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	t.Cleanup(func() { _ = master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	side, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer side.Close()
	term := &terminal{file: master}
	term.resize(t, columns, rows)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = side, side, side
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		buffer := make([]byte, 4096)
		for {
			n, err := master.Read(buffer)
			_, _ = term.out.Write(buffer[:n])
			if err != nil {
				return
			}
		}
	}()
	return term
}

func (term *terminal) resize(t *testing.T, columns, rows int) {
	t.Helper()
	if err := unix.IoctlSetWinsize(int(term.file.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: uint16(columns), Row: uint16(rows)}); err != nil {
		t.Fatal(err)
	}
}

func (term *terminal) send(t *testing.T, text string) {
	t.Helper()
	if _, err := term.file.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

// expect waits until the text is shown, after what was expected before.
func (term *terminal) expect(t *testing.T, text string) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if i := strings.Index(term.seen()[term.from:], text); i >= 0 {
			term.from += i + len(text)
			return
		}
	}
	t.Fatalf("%q is not shown; seen: %q", text, term.seen())
}

func (term *terminal) seen() string { return term.out.String() }
