// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"k8s.io/client-go/util/cert"
	imageutils "k8s.io/kubernetes/test/utils/image"
)

// upstreamImages returns a registry with the images run by the specs of node.txt, under upstream's
// names. Programs written in Go (agnhost, nonewprivs) are upstream's. The others are this
// machine's: a static busybox replaces upstream's Alpine, Debian and busybox images, with curl,
// bash and nc where upstream installs them.
func upstreamImages(binaries string) (*registry, error) {
	base, err := busybox()
	if err != nil {
		return nil, err
	}
	// Debian's busybox has a shell that drops environment variables such as data-1, which specs
	// expect, and that prefers its own nc to any other.
	tools, err := withLibraries(map[string]string{"sh": "bash", "nc": "nc.openbsd"}, "curl", "bash", "nc.openbsd")
	if err != nil {
		return nil, err
	}
	bash, err := withLibraries(map[string]string{"sh": "bash"}, "bash")
	if err != nil {
		return nil, err
	}
	certificate, err := localhost()
	if err != nil {
		return nil, err
	}
	agnhost, err := program(filepath.Join(binaries, "agnhost"), "agnhost", 0o755)
	if err != nil {
		return nil, err
	}
	nnp, err := program(filepath.Join(binaries, "nonewprivs"), "usr/local/bin/nnp", 0o755|fs.ModeSetuid|fs.ModeSetgid)
	if err != nil {
		return nil, err
	}
	const path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	pause := image{layers: []layer{base}, config: runConfig{Env: []string{path},
		Entrypoint: []string{"/bin/sh", "-c", "trap 'exit 0' TERM INT; sleep 2147483647 & wait"}}}
	served, err := inRegistry("pause", "testing", pause)
	if err != nil {
		return nil, err
	}
	all := image{layers: []layer{base, tools, certificate, agnhost, served}, config: runConfig{Env: []string{path}, Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}}}
	shell := image{layers: []layer{base, bash}, config: runConfig{Env: []string{path}, Cmd: []string{"sh"}}}
	nonRoot := shell
	nonRoot.config.User = "1234"
	privileges := image{layers: []layer{base, nnp}, config: runConfig{Env: []string{path}, Cmd: []string{"nnp"}}}
	// The specs only require this image to run.
	web := image{layers: []layer{base}, config: runConfig{Env: []string{path}, Cmd: []string{"httpd", "-f", "-p", "80", "-h", "/tmp"}}}

	r := &registry{blobs: map[string][]byte{}, tags: map[string]string{}}
	for id, image := range map[imageutils.ImageID]image{
		imageutils.Agnhost: all, imageutils.AgnhostPrev: all, imageutils.BusyBox: shell, imageutils.GlibcDnsTesting: shell, imageutils.NonRoot: nonRoot,
		imageutils.Nonewprivs: privileges, imageutils.Nginx: web, imageutils.NginxNew: web, imageutils.Pause: pause,
	} {
		if err := r.add(imageutils.GetE2EImage(id), image); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// layer is a layer of an image, a tar archive.
type layer []byte

// files builds a layer from files.
type files struct {
	out bytes.Buffer
	tar *tar.Writer
	err error
}

func newFiles() *files {
	f := &files{}
	f.tar = tar.NewWriter(&f.out)
	return f
}

func (f *files) add(name string, mode fs.FileMode, content []byte) {
	f.header(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: unixMode(mode), Size: int64(len(content))})
	if f.err == nil {
		_, f.err = f.tar.Write(content)
	}
}

func (f *files) dir(name string, mode fs.FileMode) {
	f.header(&tar.Header{Name: name + "/", Typeflag: tar.TypeDir, Mode: unixMode(mode)})
}

func (f *files) link(name, to string) {
	f.header(&tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to, Mode: 0o777})
}

func (f *files) header(h *tar.Header) {
	if f.err == nil {
		f.err = f.tar.WriteHeader(h)
	}
}

func (f *files) layer() (layer, error) {
	if f.err == nil {
		f.err = f.tar.Close()
	}
	return f.out.Bytes(), f.err
}

func unixMode(mode fs.FileMode) int64 {
	bits := int64(mode.Perm())
	for bit, unix := range map[fs.FileMode]int64{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if mode&bit != 0 {
			bits |= unix
		}
	}
	return bits
}

// These are the users and groups named by specs. Upstream's image of agnhost also has
// user-defined-in-image.
const (
	users = `root:x:0:0:root:/root:/bin/sh
user-defined-in-image:x:1000:1000::/home:/bin/sh
nobody:x:65534:65534:nobody:/:/bin/false
`
	groups = `root:x:0:
user-defined-in-image:x:1000:
group-defined-in-image:x:50000:user-defined-in-image
nogroup:x:65534:
`
)

// busybox returns a small system around this machine's static busybox.
func busybox() (layer, error) {
	const machines = "/bin/busybox"
	content, err := os.ReadFile(machines)
	if err != nil {
		return nil, fmt.Errorf("images: %w: install busybox-static", err)
	}
	applets, err := exec.Command(machines, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("images: %s --list: %w", machines, err)
	}
	f := newFiles()
	for _, dir := range []string{"bin", "dev", "etc", "home", "lib", "proc", "root", "run", "sys", "uploads", "usr", "usr/local", "usr/local/bin", "var"} {
		f.dir(dir, 0o755)
	}
	f.dir("tmp", 0o777|fs.ModeSticky)
	f.add("bin/busybox", 0o755, content)
	for _, applet := range strings.Fields(string(applets)) {
		if applet != "busybox" {
			f.link("bin/"+applet, "busybox")
		}
	}
	for _, other := range []string{"sbin", "usr/bin", "usr/sbin"} {
		f.link(other, "/bin")
	}
	f.add("etc/passwd", 0o644, []byte(users))
	f.add("etc/group", 0o644, []byte(groups))
	return f.layer()
}

// program returns a layer with one static binary.
func program(from, name string, mode fs.FileMode) (layer, error) {
	content, err := os.ReadFile(from)
	if err != nil {
		return nil, fmt.Errorf("images: %w", err)
	}
	f := newFiles()
	f.add(name, mode, content)
	if name == "agnhost" { // specs override the image's entrypoint with this name
		f.link("agnhost-2", "agnhost")
	}
	return f.layer()
}

// library matches the path of a library in a line of ldd's output.
var library = regexp.MustCompile(`(/\S+) \(0x`)

// withLibraries returns a layer with programs of this machine, their libraries, and links to the
// programs that replace applets of busybox.
func withLibraries(links map[string]string, programs ...string) (layer, error) {
	f := newFiles()
	for applet, program := range links {
		f.link("bin/"+applet, program)
	}
	there := map[string]bool{}
	add := func(name, from string) {
		if there[name] || f.err != nil {
			return
		}
		there[name] = true
		content, err := os.ReadFile(from)
		if err != nil {
			f.err = err
			return
		}
		f.add(name, 0o755, content)
	}
	for _, name := range programs {
		path, err := exec.LookPath(name)
		if err != nil {
			return nil, fmt.Errorf("images: %w: install bash, curl and netcat-openbsd", err)
		}
		out, err := exec.Command("ldd", path).Output()
		if err != nil {
			return nil, fmt.Errorf("images: ldd %s: %w", path, err)
		}
		add("bin/"+name, path)
		for _, match := range library.FindAllStringSubmatch(string(out), -1) {
			add(strings.TrimPrefix(match[1], "/"), match[1])
		}
	}
	return f.layer()
}

// localhost returns a layer with agnhost's HTTPS certificate, at the path in upstream's image.
func localhost() (layer, error) {
	certificate, key, err := cert.GenerateSelfSignedCertKey("localhost", nil, nil)
	if err != nil {
		return nil, fmt.Errorf("images: certificate: %w", err)
	}
	f := newFiles()
	f.add("localhost.crt", 0o644, certificate)
	f.add("localhost.key", 0o644, key)
	return f.layer()
}

// inRegistry returns a layer that contains an image in the format of agnhost's
// fake-registry-server.
func inRegistry(name, tag string, image image) (layer, error) {
	manifest, blobs, err := image.build("")
	if err != nil {
		return nil, err
	}
	f := newFiles()
	at := func(kind, digest string) string {
		algorithm, hash, _ := strings.Cut(digest, ":")
		return "var/registry/" + name + "/" + kind + "/" + algorithm + "/" + hash[:2] + "/" + hash + "/data"
	}
	f.add("var/registry/"+name+"/manifests/"+tag, 0o644, []byte(digestOf(manifest)))
	f.add(at("manifests", digestOf(manifest)), 0o644, manifest)
	for _, blob := range blobs {
		f.add(at("blobs", digestOf(blob)), 0o644, blob)
	}
	return f.layer()
}

// architecture is the architecture of the images, which is this machine's.
const architecture = runtime.GOARCH
