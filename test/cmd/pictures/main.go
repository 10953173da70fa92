// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Command pictures takes the screenshots of Berth's web page for the README and docs. They show a
// busy cluster of `berth up`, and a cluster of 5,000 nodes and 50,000 pods in memory. `make
// pictures` runs it.
package main

import (
	_ "embed"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/test/e2e_ui/stage"
)

//go:embed scene.yaml
var scene string

// largest is the maximum size of a picture in bytes. It is limited because the history of a
// repository keeps every version.
const largest = 300_000

func main() {
	bin := flag.String("bin", "../bin", "folder of berth and berth-controlplane")
	out := flag.String("out", "../docs/pictures", "folder that the pictures are written to")
	flag.Parse()
	if err := run(*bin, *out); err != nil {
		fmt.Fprintln(os.Stderr, "pictures:", err)
		os.Exit(1)
	}
}

// picture is one view with its preparations.
type picture struct {
	name string
	hash string
	view stage.View
	do   []string // expressions, each evaluated after the effect of the previous one is visible
	when string   // expression that is true when the picture can be taken
}

var (
	desktop = stage.View{Width: 1280, Height: 800}
	dark    = stage.View{Width: 1280, Height: 800, Dark: true}
	phone   = stage.View{Width: 390, Height: 780, Scale: 2}
)

func ofScene(trainer string) []picture {
	return []picture{
		{name: "page", view: desktop, when: "document.querySelector('#body .list').dataset.pods >= 3"},
		{name: "page-evictions", hash: "#/evictions", view: dark,
			do:   []string{"document.querySelector('#colour [data-value=taint]').click()"},
			when: "document.querySelector('#body .countdown')"},
		{name: "page-explain", hash: "#/pod/default/" + trainer, view: desktop, when: "document.querySelector('.suggestions')"},
		{name: "page-node", hash: "#/node/node-4", view: dark, when: "document.querySelector('#body .list').dataset.rows > 5"},
		{name: "page-what-if", hash: "#/what-if", view: desktop, do: []string{
			"document.querySelector('#wi-words').value = 'drain node/node-8 --ignore-daemonsets --force'",
			"document.querySelector('.primary').click()",
		}, when: "document.querySelector('.verdict') && document.querySelector('#map').map.view.plan"},
		{name: "page-narrow", hash: "#/evictions", view: phone, when: "document.querySelector('#body .countdown')"},
	}
}

func ofCrowd() []picture {
	return []picture{{name: "page-5000", view: dark, when: "document.querySelector('#map').dataset.nodes === '5000'"}}
}

func run(bin, out string) error {
	path, err := stage.Chromium()
	if err != nil {
		return err
	}

	work, err := os.MkdirTemp("", "berth-pictures-")
	if err != nil {
		return err
	}

	defer os.RemoveAll(work)
	for name, value := range map[string]string{"HOME": work, "BERTH_DATA_DIR": filepath.Join(work, "data"), "KUBECONFIG": ""} {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}

	browser, end, err := stage.Launch(path)
	if err != nil {
		return err
	}

	defer end()
	if err := takeScene(browser, bin, filepath.Join(work, "data"), out); err != nil {
		return err
	}
	return takeCrowd(browser, bin, work, out)
}

func takeScene(browser *stage.Browser, bin, data, out string) error {
	up, err := stage.Run(bin, "up", "--data-dir", data, "--nodes", "12", "--ui-port", "0")
	if err != nil {
		return err
	}
	defer up.Stop()
	trainer, err := play(bin, data)
	if err != nil {
		return err
	}
	for _, p := range ofScene(trainer) {
		if err := take(browser, up.URL, p, out); err != nil {
			return err
		}
	}
	return nil
}

// play creates workloads and taints on the cluster, and returns the name of a pending pod.
func play(bin, data string) (trainer string, err error) {
	kubectl := func(stdin string, words string) string {
		text := ""
		if err == nil {
			text, err = stage.Kubectl(bin, data, stdin, strings.Fields(words)...)
		}
		return text
	}

	kubectl("", "taint nodes node-2 dedicated=ml:NoSchedule")
	kubectl(scene, "apply -f -")
	for _, workload := range []string{"deployment/web", "deployment/checkout", "statefulset/db"} {
		kubectl("", "-n shop rollout status --timeout=60s "+workload)
	}

	kubectl("", "rollout status --timeout=60s deployment/batch")
	kubectl("", "taint nodes node-5 maintenance=now:NoExecute")
	kubectl("", "cordon node-9")
	kubectl("", "wait --for=jsonpath={.status.conditions[?(@.type==\"PodScheduled\")].reason}=Unschedulable pod -l "+
		"app=trainer --timeout=60s")
	return kubectl("", "get pods -l app=trainer -o jsonpath={.items[0].metadata.name}"), err
}

func takeCrowd(browser *stage.Browser, bin, work, out string) error {
	crowd := stage.NewCrowd(5000, 5, 50000)
	defer crowd.Close()
	for i := range crowd.Nodes {
		switch {
		case i%61 == 7:
			crowd.SetNode(i, func(n *v1.Node) { n.Spec.Unschedulable = true })
		case i%173 == 11:
			crowd.SetNode(i, func(n *v1.Node) { n.Spec.Taints = []v1.Taint{{Key: "maintenance", Effect: v1.TaintEffectNoExecute}} })
		case i%211 == 40:
			crowd.SetNode(i, func(n *v1.Node) { n.Status.Conditions[0].Status = v1.ConditionUnknown })
		}
	}

	for i := range 240 {
		crowd.SetPod(len(crowd.Pods), crowd.Pod(100_000+i, ""))
	}
	kubeconfig, err := crowd.Kubeconfig(work)
	if err != nil {
		return err
	}

	ui, err := stage.Run(bin, "ui", "--kubeconfig", kubeconfig, "--port", "0")
	if err != nil {
		return err
	}

	defer ui.Stop()
	for _, p := range ofCrowd() {
		if err := take(browser, ui.URL, p, out); err != nil {
			return err
		}
	}
	return nil
}

// settled is an expression that resolves after the page has drawn its updates.
const settled = "new Promise((done) => setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(() => done(true))), 400))"

func take(browser *stage.Browser, url string, p picture, out string) error {
	page, err := browser.Open(url+p.hash, p.view)
	if err != nil {
		return err
	}

	defer page.Close()
	if err := page.Wait("document.querySelector('#status').dataset.state === 'live'"); err != nil {
		return err
	}

	for _, expression := range p.do {
		if _, err := stage.Eval[bool](page, "("+expression+", true)"); err != nil {
			return err
		}
	}

	if err := page.Wait(p.when); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	if _, err := stage.Eval[bool](page, settled); err != nil {
		return err
	}

	png, err := page.Screenshot()
	if err != nil {
		return err
	}
	if len(png) > largest {
		return fmt.Errorf("%s has %d bytes, more than %d", p.name, len(png), largest)
	}

	file := filepath.Join(out, p.name+".png")
	fmt.Printf("%s: %d KB\n", file, len(png)/1000)
	return os.WriteFile(file, png, 0o644)
}
