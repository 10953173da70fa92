// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/controller/controllershadow"
	"github.com/berth-k8s/berth/internal/controller/eviction/evictioncontroller"
	"github.com/berth-k8s/berth/internal/controller/nodehealth/nodecontroller"
	"github.com/berth-k8s/berth/internal/durable"
	"github.com/berth-k8s/berth/internal/kube/guard"
)

// shadowEach is the interval between updates of the report and the metrics.
const shadowEach = time.Minute

// ShadowOptions are the options of --shadow.
type ShadowOptions struct {
	// On is set if the process only compares, and writes nothing to the cluster.
	On bool
	// Report is the file for the comparison, "" for none.
	Report string
	// Scheduler is the report file of the scheduler's shadow, "" for none. The report is served
	// together with the controllers' report, and published as metrics.
	Scheduler string
}

// newShadow prepares to follow the cluster instead of leading. A read-only role suffices for it.
func (c *Controller) newShadow() error {
	client, err := kubernetes.NewForConfig(c.clientConfig("berth-controller/shadow", -1))
	if err != nil {
		return fmt.Errorf("client for the shadow: %w", err)
	}
	health := c.options.NodeHealth
	health.ReadsLeases = false // a shadow does not carry out the core's requests to read Leases
	c.follower = controllershadow.NewFollower(client, c.options.isEnabled(evictioncontroller.Name), c.options.isEnabled(nodecontroller.Name), health)
	return nil
}

// runShadow compares until the context ends. The report is written every shadowEach and once more
// at the end.
func (c *Controller) runShadow(ctx context.Context) error {
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		c.follower.Run(ctx)
	}()
	each := time.NewTicker(shadowEach)
	defer each.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-each.C:
		}
		// The report is also published after the context has ended, because the last report matters
		// most.
		c.publishShadow(ctx)
	}
	<-followed
	return nil
}

// publishShadow updates the file and the metrics. A failed write is logged, and the comparison
// continues.
func (c *Controller) publishShadow(ctx context.Context) {
	log := klog.FromContext(ctx)
	reports := c.shadowReports()
	controllershadow.UpdateMetrics(reports)
	if path := c.options.Shadow.Report; path != "" {
		if err := writeReport(path, reports.Controller); err != nil {
			log.Error(err, "Shadow report not written, will try again", "file", path)
		}
	}
}

// writeReport replaces the file in one step, so that a reader never sees half of it.
func writeReport(path string, report *controllershadow.Report) error {
	text, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return err
	}
	return durable.Swap(path, append(text, '\n'), 0o644)
}

// shadowReports returns the current reports of both components. The scheduler's report is nil as
// long as its file is missing or invalid.
func (c *Controller) shadowReports() controllershadow.Reports {
	reports := controllershadow.Reports{Controller: c.follower.Ledger.Report(time.Now())}
	if path := c.options.Shadow.Scheduler; path != "" {
		if text, err := os.ReadFile(path); err == nil {
			reports.Scheduler = controllershadow.PlacementsOf(text) // nil unless it is a report
		}
	}
	return reports
}

// serveShadow serves the reports at /shadow, in JSON. They contain names of pods and nodes, and the
// port is unauthenticated, so only requests from this machine are accepted, which includes users
// permitted to forward a port.
func (c *Controller) serveShadow(w http.ResponseWriter, r *http.Request) {
	if !guard.Local(r) {
		guard.Refuse(w, http.StatusForbidden, "only answered on loopback: kubectl port-forward")
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		return
	}
	text, err := json.MarshalIndent(c.shadowReports(), "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(text, '\n'))
}
