// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berth-k8s/berth/internal/durable"
)

// reportEvery is the interval between a shadow's reports.
const reportEvery = time.Minute

// runShadow makes the scheduler observe another scheduler until the context ends.
func (p *process) runShadow(ctx context.Context) error {
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- p.scheduler.Run(watching, p.flags.Binders) }()
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()

	for {
		select {
		case err := <-ended:
			return err
		case <-ctx.Done():
			stop()
			return errors.Join(<-ended, p.shadow.Report(time.Now()).Write(p.out, ""), p.writeReport())
		case <-tick.C:
			fmt.Fprintln(p.err, p.shadow.Report(time.Now()).Line())
			if err := p.writeReport(); err != nil {
				fmt.Fprintln(p.err, err)
			}
		}
	}
}

func (p *process) writeReport() error {
	path := p.flags.ShadowReport
	if path == "" {
		return nil
	}
	var text bytes.Buffer
	if err := p.shadow.Report(time.Now()).Write(&text, "json"); err != nil {
		return err
	}
	if err := durable.Swap(path, text.Bytes(), 0o644); err != nil {
		return fmt.Errorf("--shadow-report: %w", err)
	}
	return nil
}
