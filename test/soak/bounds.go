// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// mostMemory and mostGoroutines limit each process of Berth on a cluster of this size. They
	// include a margin, so only a leak exceeds them.
	mostMemory     = 400 << 20
	mostGoroutines = 1500
	// moreMemory and moreGoroutines limit the growth of a process since its first measurement at
	// rest, to find slow leaks.
	moreMemory     = 80 << 20
	moreGoroutines = 300
)

// size holds the resources of a process.
type size struct{ memory, goroutines int64 }

// sizes holds the sizes of all processes at rest.
type sizes struct {
	mu    sync.Mutex
	first map[int]size // first measured size, by process
	most  map[string]size
}

func newSizes() *sizes { return &sizes{first: map[int]size{}, most: map[string]size{}} }

// noteSize compares the size of a process with the limits, and describes the exceeded limits.
func (s *sizes) noteSize(name string, pid int, now size) (over []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	most := s.most[name]
	s.most[name] = size{max(most.memory, now.memory), max(most.goroutines, now.goroutines)}
	first, known := s.first[pid]
	if !known {
		s.first[pid] = now
		first = now
	}

	check := func(what string, now, first, most, more int64) {
		switch {
		case now > most:
			over = append(over, fmt.Sprintf("%s has %d %s, more than %d", name, now, what, most))
		case now > first+first/2+more:
			over = append(over, fmt.Sprintf("%s has grown from %d to %d %s", name, first, now, what))
		}
	}

	check("bytes of memory", now.memory, first.memory, mostMemory, moreMemory)
	check("goroutines", now.goroutines, first.goroutines, mostGoroutines, moreGoroutines)
	return over
}

// measureParts measures all processes. The control plane consists of Kubernetes code, so it is not
// compared with the limits.
func (c *campaign) measureParts() {
	for _, p := range c.parts {
		pid := p.pid()
		now := size{memory: residentMemory(pid)}
		if body, err := p.getPath("/metrics"); err == nil {
			now.goroutines = parseMetric(body, "go_goroutines")
		}

		if pid == 0 || now.memory == 0 {
			continue
		}
		over := c.sizes.noteSize(p.name, pid, now)
		if p == c.plane {
			continue
		}

		c.observer.checks.addOne(bounded)
		for _, what := range over {
			c.addViolation(bounded, what, p.name)
		}
	}
}

// residentMemory returns the process's resident memory in bytes, or 0 if the process has ended.
func residentMemory(pid int) int64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return kib << 10
		}
	}
	return 0
}

func parseMetric(page, name string) int64 {
	lines := bufio.NewScanner(strings.NewReader(page))
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			value, _ := strconv.ParseFloat(rest, 64)
			return int64(value)
		}
	}
	return 0
}

var endpoints = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// getPath returns the response body of one of the part's HTTP endpoints.
func (p *part) getPath(path string) (string, error) {
	address := p.journal.endpointAddress()
	if address == "" {
		return "", fmt.Errorf("it has not said where its endpoints are")
	}
	response, err := endpoints.Get(address + path)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}
