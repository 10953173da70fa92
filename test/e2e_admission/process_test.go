// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eadmission

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-k8s/berth/internal/admission/webhook"
)

// role is the environment variable for the role of this binary when a test runs it as a separate
// process.
const role = "BERTH_TEST_ROLE"

func TestMain(m *testing.M) {
	if os.Getenv(role) == "webhook" {
		if err := serveWebhook(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// serveWebhook runs a webhook like `berth webhook`, and prints its addresses when it is ready.
func serveWebhook(args []string) error {
	options := webhookOptions()
	flags := pflag.NewFlagSet("webhook", pflag.ContinueOnError)
	kubeconfig := flags.String("kubeconfig", "", "")
	options.AddFlags(flags)
	if err := flags.Parse(args); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	w, err := webhook.New(config, options)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() {
		<-w.Ready()
		fmt.Println(w.Address(), w.HealthAddress())
	}()
	return w.Run(ctx)
}

// process is a webhook in a separate process.
type process struct {
	cmd             *exec.Cmd
	address, health string
}

// startProcess starts a webhook in a separate process and waits until it is ready.
func (c *cluster) startProcess(t testing.TB, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(os.Args[0], append([]string{"--kubeconfig", c.Kubeconfig}, args...)...)}
	p.cmd.Env = append(os.Environ(), role+"=webhook")
	log := &strings.Builder{}
	p.cmd.Stderr = log
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("log of the webhook:\n%s", log)
		}
	})
	if _, err := fmt.Fscanln(out, &p.address, &p.health); err != nil {
		t.Fatalf("the webhook is not ready: %v\n%s", err, log)
	}
	return p
}

// kill sends SIGKILL and waits for the end of the process.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}
