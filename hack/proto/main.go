// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Command proto generates the Go code and the OpenAPI document of protobuf definitions. It needs no
// protoc: it compiles the definitions itself, and runs the plugins of this module's tools.
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	if err := generate(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// generate writes the generated files of the definitions next to them, below root.
func generate(root string, files []string) error {
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{root}}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	compiled, err := compiler.Compile(context.Background(), files...)
	if err != nil {
		return err
	}
	request := &pluginpb.CodeGeneratorRequest{FileToGenerate: files, Parameter: proto.String("paths=source_relative")}
	added := map[string]bool{}
	for _, file := range compiled {
		request.ProtoFile = appendFiles(request.ProtoFile, file, added)
		if file.Services().Len() == 0 || !strings.HasPrefix(string(file.Package()), "berth.") {
			continue // protocols of others have no JSON form
		}
		text, err := openAPI(file)
		if err != nil {
			return err
		}
		name := filepath.Join(root, filepath.Dir(file.Path()), "openapi.yaml")
		if err := os.WriteFile(name, text, 0o600); err != nil {
			return err
		}
	}
	if err := runPlugin("protoc-gen-go", root, request); err != nil {
		return err
	}
	request.Parameter = proto.String("paths=source_relative,simple,package_suffix")
	return runPlugin("protoc-gen-connect-go", root, request)
}

// appendFiles appends the descriptor of a file, after the files that it imports.
func appendFiles(list []*descriptorpb.FileDescriptorProto, file protoreflect.FileDescriptor,
	added map[string]bool) []*descriptorpb.FileDescriptorProto {
	if added[file.Path()] {
		return list
	}
	added[file.Path()] = true
	for i := range file.Imports().Len() {
		list = appendFiles(list, file.Imports().Get(i).FileDescriptor, added)
	}
	return append(list, protoutil.ProtoFromFileDescriptor(file))
}

// runPlugin runs a plugin of protoc and writes the files that it generates.
func runPlugin(name, root string, request *pluginpb.CodeGeneratorRequest) error {
	input, err := proto.Marshal(request)
	if err != nil {
		return err
	}
	var output bytes.Buffer
	cmd := exec.Command("go", "tool", name)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &output, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	response := &pluginpb.CodeGeneratorResponse{}
	if err := proto.Unmarshal(output.Bytes(), response); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if response.Error != nil {
		return fmt.Errorf("%s: %s", name, response.GetError())
	}
	for _, file := range response.File {
		if err := os.WriteFile(filepath.Join(root, file.GetName()), []byte(file.GetContent()), 0o600); err != nil {
			return err
		}
	}
	return nil
}
