package cri

import (
	"bytes"
	"io"
	"os"
	"strings"

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
// that many lines.
func fileEnd(path string, most int64, lines int) string {
	if path == "" {
		return ""
	}
	if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
		return "" // the container may replace it with anything
	}
	f, err := os.Open(path)
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

// logEnd is the end of a container's log, without the runtime's prefix of each line.
func logEnd(path string) string {
	var out strings.Builder
	for line := range strings.Lines(fileEnd(path, 64<<10, maxLogLines+1)) {
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
