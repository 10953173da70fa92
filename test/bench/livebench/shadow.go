// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package livebench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"

	"github.com/berth-k8s/berth/internal/scheduler/schedulershadow"
	"github.com/berth-k8s/berth/test/bench/driver"
	"github.com/berth-k8s/berth/test/internal/process"
)

// shade is a process of Berth as the shadow of another scheduler.
type shade struct {
	*process.Process
	report string
}

// startShade starts the shadow and waits until its caches are synced, because it only compares the
// choices for pods that it has observed while they were pending.
func (b *bench) startShade(ctx context.Context) (*shade, error) {
	ports, err := driver.FreePorts(1)
	if err != nil {
		return nil, err
	}
	address := "127.0.0.1:" + ports[0]
	s := &shade{report: filepath.Join(b.Dir, "shadow.json")}
	s.Process, err = b.StartScheduler(&driver.Scheduler{Key: "shadow", Command: b.berthCommand()}, "--secure-port", "0",
		"--health-bind-address", address, "--shadow", "--shadow-report", s.report)
	if err != nil {
		return nil, err
	}

	err = b.Until(ctx, "the shadow", patience, func() (string, error) {
		response, err := http.Get("http://" + address + "/readyz")
		if err != nil {
			return err.Error(), nil // the shadow does not listen yet
		}
		response.Body.Close()
		return driver.Lacking(response.StatusCode, http.StatusOK), nil
	})
	if err != nil {
		_, _ = s.Stop()
		return nil, err
	}
	return s, nil
}

// readReport stops the shadow and reads its report.
func (s *shade) readReport() (*schedulershadow.Report, error) {
	if _, err := s.Stop(); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(s.report)
	if err != nil {
		return nil, err
	}
	r := &schedulershadow.Report{}
	return r, json.Unmarshal(data, r)
}

func (r *Report) writeShadows(w io.Writer) {
	lines := [][]string{{"mode", "pods compared", "on a best node", "mean total", "mean of the best", "mean gain",
		"largest gain", "could not take the pod by then"}}
	for _, m := range r.Modes {
		for _, round := range m.Rounds {
			if s := round.Shadow; s != nil && s.Pods > 0 {
				lines = append(lines, []string{m.Mode.Name, driver.Thousands(s.Pods),
					fmt.Sprintf("%.1f %%", 100*float64(s.Best)/float64(s.Pods)),
					fmt.Sprintf("%.1f", s.MeanTotal), fmt.Sprintf("%.1f", s.MeanBestTotal),
					fmt.Sprintf("%.1f", s.MeanGain), fmt.Sprint(s.MaxGain), fmt.Sprint(s.Rejected)})
			}
		}
	}
	driver.Table(w, "kube-scheduler's choices, judged by a shadow over all nodes", lines)
}
