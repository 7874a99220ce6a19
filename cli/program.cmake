tandem_program(
  tandem
  SOURCES main.cc
  DEPS tandem_base tandem_cli_chat tandem_cli_serve tandem_cli_text tandem_cli_bench tandem_cli_plan
)
