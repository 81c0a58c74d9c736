package tensor

//go:generate sh ../../tools/asmgen/generate.sh
