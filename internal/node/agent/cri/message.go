package cri

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Upstream's limits for termination messages: a file of 4 KiB, or 80 lines and 2 KiB of a log.
const (
	maxMessage  = 4096
	maxLogTail  = 2048
	maxLogLines = 80
)

// messageFile is where the container's termination message is on the machine.
func messageFile(st *runtimeapi.ContainerStatus) string {
	path := st.Annotations[annotationMessagePath]
	for _, m := range st.Mounts {
		if path != "" && m.ContainerPath == path {
			return m.HostPath
		}
	}
	return ""
}

// fileEnd returns the last bytes of a regular file, most at most. If lines is set, it keeps only
// that many lines. Containers can change everything below the trusted folder, also while the file
// is being opened: anything but a regular file there, reached without links, counts as empty.
func fileEnd(trusted, path string, most int64, lines int) string {
	f, err := openBelow(trusted, path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > most {
		if _, err := f.Seek(-most, io.SeekEnd); err != nil {
			return ""
		}
	}
	text, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return ""
	}
	if lines > 0 {
		all := bytes.SplitAfter(text, []byte("\n"))
		text = bytes.Join(all[max(0, len(all)-lines):], nil)
	}
	return string(text)
}

var errNoFile = errors.New("not a regular file")

// openBelow opens a regular file below a folder without following links. Each step starts from an
// open folder, and nothing is opened for reading before it is known to be a regular file: opening a
// pipe may block, and opening a device may do more.
func openBelow(folder, path string) (*os.File, error) {
	way, err := filepath.Rel(folder, path)
	if err != nil || path == "" || !filepath.IsLocal(way) {
		return nil, errNoFile
	}
	const place = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
	at, err := unix.Open(folder, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	for step := range strings.SplitSeq(way, "/") {
		next, err := unix.Openat(at, step, place, 0)
		_ = unix.Close(at)
		if err != nil {
			return nil, err
		}
		at = next
	}
	defer unix.Close(at)
	var stat unix.Stat_t
	if err := unix.Fstat(at, &stat); err != nil {
		return nil, err
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errNoFile
	}
	return os.Open("/proc/self/fd/" + strconv.Itoa(at))
}

// logEnd is the end of a container's log, without the runtime's prefix of each line.
func logEnd(path string) string {
	var out strings.Builder
	for line := range strings.Lines(fileEnd(filepath.Dir(path), path, 64<<10, maxLogLines+1)) {
		// 2026-01-02T15:04:05.000000000Z stdout F text
		parts := strings.SplitN(line, " ", 4)
		if len(parts) != 4 || parts[1] != "stdout" && parts[1] != "stderr" {
			continue
		}
		text := parts[3]
		if parts[2] == "P" {
			text = strings.TrimSuffix(text, "\n")
		}
		out.WriteString(text)
	}
	text := out.String()
	return text[max(0, len(text)-maxLogTail):]
}
